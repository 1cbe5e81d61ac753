# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of the lab."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lab import engine, faults, report, seed, spec, ssh
from lab.backend import Backend
from lab.cabling import CABLINGS, cables
from lab.containers import Containers
from lab.network import Network, machine_routes
from lab.spec import BACKENDS, Lab
from lab.standin import image as standin
from lab.system import CACHE, STATE, LabError, become_root, lock, need_programs, say, step
from lab.vms import Machines

# Read by anybody, changed by root.
_UNPRIVILEGED = ("inventory", "summary", "checkpoint")


def backend_of(lab: Lab, network: Network) -> Backend:
    return Machines(lab, network) if lab.backend == "vm" else Containers(lab, network)


class Session:
    """One existing lab with its wires and its backend."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.network = Network(lab)
        self.backend = backend_of(lab, self.network)


def existing(name: str) -> Session:
    lab = spec.load(name)
    if lab is None:
        names = ", ".join(lab.name for lab in spec.all_labs()) or "none"
        raise LabError(
            f"there is no lab '{name}' (labs here: {names}); make it: lab --name {name} up"
        )
    return Session(lab)


# --- verbs ---


def up(options: argparse.Namespace) -> None:
    lab = spec.load(options.name)
    if options.cells:
        options.cabling, options.hosts = "pairs", 2 * options.cells
    asked = {
        "backend": options.backend,
        "hosts_wanted": options.hosts,
        "cabling": options.cabling,
        "addressed": None if options.bare is None else not options.bare,
    }
    asked = {field: value for field, value in asked.items() if value is not None}
    need_programs({"ip": "iproute2", "ssh": "openssh-client", "sysctl": "procps"})
    if lab is None:
        asked["hosts_wanted"] = asked.get("hosts_wanted") or _usual_hosts(options.cabling)
        lab = Lab(options.name, -1, **asked)
        cables(lab.cabling, lab.hosts_wanted)  # refuse before anything is made
        with lock(STATE / ".index.lock"):
            lab.index = spec.free_index(machine_routes())
            lab.save()
    for field, value in asked.items():
        if getattr(lab, field) != value:
            raise LabError(
                f"lab '{lab.name}' exists with {field.removesuffix('_wanted')} "
                f"{getattr(lab, field)}, not {value}; remove it first: lab --name {lab.name} down"
            )
    session = Session(lab)
    session.backend.prepare()
    seed.make_keys(lab)
    session.network.up()
    session.backend.up(lab.hosts)
    ssh.write_access(lab)
    lab.save()
    _settle(session, lab.hosts)
    say(f"lab '{lab.name}' is up: {lab.hosts_wanted} hosts ({lab.backend}), {lab.cabling}")


def _usual_hosts(cabling: str | None) -> int:
    allowed = CABLINGS[cabling or "ring"].hosts
    return 4 if 4 in allowed else allowed[0]


def _settle(session: Session, hosts: Sequence[spec.Host]) -> None:
    with step(f"waiting for ssh to {len(hosts)} host(s)"):
        ssh.wait(session.lab, hosts, session.backend.boot_seconds)
    if session.lab.addressed:
        faults.give_addresses(session.lab, hosts)


def down(options: argparse.Namespace) -> None:
    """Everything of that name goes, also what an interrupted ``up`` left without a description."""
    names = [options.name]
    if options.family:
        names += [lab.name for lab in spec.all_labs() if lab.name.startswith(f"{options.name}-")]
    for name in names:
        _remove(name)
    engine.stop()


def _remove(name: str) -> None:
    try:
        lab = spec.load(name)
    except LabError as error:  # its description is damaged: what carries its name still goes
        say(str(error))
        lab = None
    lab = lab or Lab(name, 0)
    network = Network(lab)
    Containers(lab, network).down()
    Machines(lab, network).down()
    network.down()
    spec.forget(lab.name)
    say(f"lab '{lab.name}' is gone")


def list_labs(_options: argparse.Namespace) -> None:
    for lab in spec.all_labs():
        say(f"{lab.name:<20} {lab.backend:<11} {lab.hosts_wanted} hosts  {lab.cabling}")


def status(options: argparse.Namespace) -> None:
    session = existing(options.name)
    found = report.status(session.lab, session.network, session.backend)
    say(json.dumps(found, indent=2) if options.json else report.status_text(found))


def inventory(options: argparse.Namespace) -> None:
    say(json.dumps(ssh.inventory(existing(options.name).lab), indent=2))


def summary(options: argparse.Namespace) -> None:
    say(report.summary_text(existing(options.name).lab, options.report))


def shell(options: argparse.Namespace) -> None:
    lab = existing(options.name).lab
    argv = ssh.command(lab, lab.host(options.host), options.command)
    os.execvp(argv[0], argv)


def console(options: argparse.Namespace) -> None:
    session = existing(options.name)
    say(session.backend.console(session.lab.host(options.host)))


def power(options: argparse.Namespace) -> None:
    session = existing(options.name)
    host = session.lab.host(options.host)
    {
        "stop": session.backend.stop,
        "start": session.backend.start,
        "reboot": session.backend.reboot,
    }[options.verb](host)
    if options.verb != "stop":
        _settle(session, [host])


def cable(options: argparse.Namespace) -> None:
    session = existing(options.name)
    act = faults.unplug if options.move == "unplug" else faults.plug
    for name in options.cables:
        act(session.network, session.backend, faults.cable_called(session.lab, name))


def recable(options: argparse.Namespace) -> None:
    session = existing(options.name)
    faults.recable(session.lab, session.network, session.backend, options.cabling)


def mtu(options: argparse.Namespace) -> None:
    session = existing(options.name)
    host = session.lab.host(options.host)
    session.network.set_path_mtu(host, spec.port_by_name(options.port), options.mtu)


def management(options: argparse.Namespace) -> None:
    session = existing(options.name)
    session.network.set_management(session.lab.host(options.host), options.state == "on")


def fill(options: argparse.Namespace) -> None:
    lab = existing(options.name).lab
    faults.fill_disk(lab, lab.host(options.host), options.folder, options.leave)


def empty(options: argparse.Namespace) -> None:
    lab = existing(options.name).lab
    faults.empty_disk(lab, lab.host(options.host), options.folder)


def gid_shift(options: argparse.Namespace) -> None:
    lab = existing(options.name).lab
    port = spec.port_by_name(options.port)
    say(f"{options.host} {port.hca}: {faults.shift_gid(lab, lab.host(options.host), port)}")


def image(options: argparse.Namespace) -> None:
    if options.archive:
        say(str(standin.image().archive(options.architecture)))
        return
    lab = existing(options.name).lab
    standin.image().load(lab, options.hosts or [host.name for host in lab.hosts])


def stand_ins(options: argparse.Namespace) -> None:
    from lab.standin import cell  # needs numpy, which the rest of the lab does not

    rows = _row_counts(options) or cell.ROWS
    say(f"-e @{cell.prepare(existing(options.name).lab, rows)}")


def real_engine(options: argparse.Namespace) -> None:
    from lab.sglang import install  # needs numpy, which the rest of the lab does not

    install.put(existing(options.name).lab)


def snapshot(options: argparse.Namespace) -> None:
    machines = existing(options.name).backend
    if not isinstance(machines, Machines):
        raise LabError("only virtual machines can be saved; containers come up in seconds")
    (machines.snapshot if options.verb == "snapshot" else machines.restore)(options.snapshot)


def _row_counts(options: argparse.Namespace) -> Sequence[int]:
    return tuple(int(count) for count in options.rows.split(",")) if options.rows else ()


def make_checkpoint(options: argparse.Namespace) -> None:
    from lab import checkpoint  # needs numpy, which the rest of the lab does not

    usual = checkpoint.REAL_ROWS if options.sparse else checkpoint.ROWS
    rows = _row_counts(options) or usual
    told = checkpoint.make(
        options.directory, rows=rows, layers=checkpoint.LAYERS[: len(rows)], sparse=options.sparse
    )
    path = options.directory.with_name(f"{options.directory.name}.yml")
    checkpoint.write_facts(path, told)
    say(f"{options.directory}: {told['weight_bytes']} bytes of weights")
    say(f"{path}: the facts about it, for spark_model")
    if options.host:
        lab = existing(options.name).lab
        checkpoint.put(lab, lab.host(options.host), options.directory)


def purge(_options: argparse.Namespace) -> None:
    """Images and engine data; only without labs, since they stand on them."""
    if spec.all_labs():
        raise LabError("there are labs on these images; remove them first (lab list, lab down)")
    engine.stop()
    shutil.rmtree(CACHE, ignore_errors=True)
    say(f"{CACHE} is gone; the next lab builds its images anew")


# --- words ---


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab",
        description="Virtual DGX Sparks on this machine: systemd containers or QEMU machines with "
        "the netdevs, cabling, ssh and disks of real ones. What is not real, `status` lists.",
    )
    parser.add_argument("--name", default=os.environ.get("LAB_NAME") or "lab", help="which lab")
    parser.add_argument("--backend", choices=BACKENDS, help="containers (default) or vm, for `up`")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, act: object, about: str) -> argparse.ArgumentParser:
        words = verbs.add_parser(name, help=about, description=about)
        words.set_defaults(act=act)
        return words

    def on_host(name: str, act: object, about: str) -> argparse.ArgumentParser:
        words = verb(name, act, about)
        words.add_argument("host", help="spark1, spark2, ...")
        return words

    words = verb("up", up, "make the lab, or what is missing of it")
    words.add_argument("--hosts", type=int, help="how many Sparks (2 to 8, default 4)")
    words.add_argument(
        "--cabling",
        choices=CABLINGS,
        help="; ".join(f"{name}: {rule.about}" for name, rule in CABLINGS.items()),
    )
    words.add_argument(
        "--cells",
        type=int,
        choices=range(2, 5),
        help="several cells of two hosts each behind one router (sets --hosts and --cabling)",
    )
    words.add_argument(
        "--bare",
        action=argparse.BooleanOptionalAction,
        help="no addresses on the fabric ports, as freshly installed",
    )
    words = verb("down", down, "remove everything of this lab, and nothing else")
    words.add_argument("--family", action="store_true", help="and the labs called NAME-...")
    verb("list", list_labs, "the labs of this machine")
    words = verb("status", status, "hosts, cables as they are plugged, stand-ins")
    words.add_argument("--json", action="store_true")
    verb("inventory", inventory, "an Ansible inventory of the lab")
    words = verb("summary", summary, "what was proven, what was stood in for")
    words.add_argument("--report", type=Path, help="JSON report of a doctor run")
    words = on_host("ssh", shell, "a shell on a host, or one command")
    words.add_argument("command", nargs=argparse.REMAINDER)
    on_host("console", console, "what the host printed while booting")
    for name, about in [
        ("stop", "power cut"),
        ("start", "power on, and wait for ssh"),
        ("reboot", "restart, and wait for ssh"),
    ]:
        on_host(name, power, about)
    words = verb("cable", cable, "pull or put back the plugs of a cable")
    words.add_argument("move", choices=["unplug", "plug"])
    words.add_argument("cables", nargs="+", metavar="CABLE", help="cab0, 0, or an end: spark1:0")
    words = verb("recable", recable, "pull every plug and cable the hosts another way")
    words.add_argument("cabling", choices=CABLINGS)
    words = on_host("mtu", mtu, "narrow the wire behind one twin (9216: as it was)")
    words.add_argument("port", help="netdev or RDMA device of the port")
    words.add_argument("mtu", type=int)
    words = on_host("management", management, "cut or restore the management link")
    words.add_argument("state", choices=["off", "on"])
    for name, act, about in [
        ("fill", fill, "fill a filesystem"),
        ("empty", empty, "take the filling out again"),
    ]:
        words = on_host(name, act, about)
        words.add_argument("folder", nargs="?", default="/data")
        if name == "fill":
            words.add_argument("--leave", type=int, default=0, metavar="MiB", help="space to leave")
    words = on_host("gid-shift", gid_shift, "move a port's IPv4 GIDs, leaving a hole")
    words.add_argument("port", help="netdev or RDMA device of the port")
    words = verb("checkpoint", make_checkpoint, "write a stand-in for the model's checkpoint")
    words.add_argument("directory", type=Path, help="on this machine; facts go to DIRECTORY.yml")
    words.add_argument("--rows", metavar="N[,M]", help="rows of each Engram table")
    words.add_argument("--sparse", action="store_true", help="tables of real size, mostly holes")
    words.add_argument("--host", help="and copy it to /data/checkpoint of this host")
    words = verb("image", image, "put the image of the stand-in engine on the hosts")
    words.add_argument("hosts", nargs="*", metavar="HOST", help="default: all of them")
    words.add_argument("--archive", action="store_true", help="only make it, and say where it is")
    words.add_argument("--architecture", help="what the archive claims to be for (a mistake)")
    words = verb(
        "standin", stand_ins, "give hosts a checkpoint, engine image and NCCL that stand in"
    )
    words.add_argument("--rows", metavar="N,M", help="rows of each Engram table")
    verb("sglang", real_engine, "put the real SGLang with a toy model on the hosts")
    for name, about in [
        ("snapshot", "save memory and disks of all virtual machines"),
        ("restore", "put all virtual machines back to a snapshot"),
    ]:
        words = verb(name, snapshot, about)
        words.add_argument("snapshot", nargs="?", default="fresh", help="its name (default: fresh)")
    verb("purge", purge, "remove cached images (only without labs)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        spec.valid_name(options.name)
        if options.verb not in _UNPRIVILEGED:
            become_root()
        if options.verb in (*_UNPRIVILEGED, "ssh", "list"):
            options.act(options)
        else:
            with lock(STATE / f".{options.name}.lock"):
                options.act(options)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nlab: interrupted; the same command can be repeated", file=sys.stderr)
        return 130
    return 0
