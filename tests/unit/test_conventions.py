"""Conventions every role, playbook and plugin of the collection keeps; see CONTRIBUTING.md.

Each test takes one thing and names it when it breaks the rule. New content is found by itself.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.playbook import ROOT, Note, Run, ansible_env, run_playbook

ROLES = sorted(p.name for p in (ROOT / "roles").iterdir() if p.is_dir())
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml")) + [ROOT / "site.yml"]
TEXTS = sorted(
    path
    for folder in ("roles", "playbooks", "molecule", "inventories")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".yml", ".yaml", ".j2"} and "collections" not in path.parts
)
DOCUMENTED = {"modules": "module", "filter": "filter", "lookup": "lookup", "callback": "callback"}
PLUGINS = sorted(
    path
    for folder in DOCUMENTED
    for path in (ROOT / "plugins" / folder).glob("*.py")
    if path.stem != "__init__"
)

TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "path": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "list": list,
    "dict": dict,
    "raw": object,
}
# Variables Ansible itself defines or is configured by. Every other ansible_* name would be an
# injected fact, which `ansible_facts` must be asked for instead.
MAGIC = re.compile(
    r"ansible_(facts|version|check_mode|diff_mode|verbosity|limit|forks|config_file|managed"
    r"|play_\w+|run_tags|skip_tags|inventory_sources|collection_name|parent_role_\w+|role_names?"
    r"|dependent_role_names|search_path|playbook_python|failed_task|failed_result|loop_?\w*"
    r"|index_var|delegated_vars|host|port|user|password|connection|python_interpreter|become\w*"
    r"|control_path_dir"
    r"|ssh_(?!host_key)\w+|pipelining|shell_type|collections)"
)

each_role = pytest.mark.parametrize("role", ROLES)
each_playbook = pytest.mark.parametrize(
    "playbook", PLAYBOOKS, ids=lambda p: str(p.relative_to(ROOT))
)
each_text = pytest.mark.parametrize("text", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
each_plugin = pytest.mark.parametrize("plugin", PLUGINS, ids=lambda p: f"{p.parent.name}/{p.stem}")


def load(path: Path) -> dict[str, Any]:
    return (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None) or {}


def defaults_of(role: str) -> dict[str, Any]:
    return load(ROOT / "roles" / role / "defaults" / "main.yml")


def options_of(role: str) -> dict[str, dict[str, Any]]:
    """All options of a role; entry points that share one must agree on it."""
    options: dict[str, dict[str, Any]] = {}
    spec = load(ROOT / "roles" / role / "meta" / "argument_specs.yml")
    for entry in spec["argument_specs"].values():
        for name, option in entry.get("options", {}).items():
            assert options.setdefault(name, option) == option, f"{name} differs by entry point"
    return options


def same(a: Any, b: Any) -> bool:
    """Whether two YAML values are equal and of equal types throughout: true is not 1 here."""
    return _plain(a) == _plain(b)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def test_the_tests_see_the_collection():
    assert ROLES
    assert len(PLAYBOOKS) > 1
    assert PLUGINS


@each_role
def test_defaults_equal_the_argument_spec(role):
    defaults, options = defaults_of(role), options_of(role)
    missing = sorted(defaults.keys() - options.keys())
    assert not missing, f"in defaults/main.yml but not in meta/argument_specs.yml: {missing}"
    documented = {n for n, o in options.items() if "default" in o}
    assert not (extra := sorted(documented - defaults.keys())), f"no such default: {extra}"
    silent = sorted(defaults.keys() - documented)
    assert not silent, f"meta/argument_specs.yml does not tell the default of {silent}"
    for name, value in defaults.items():
        told = options[name]["default"]
        assert same(told, value), f"{name} is {value!r}, but documented as {told!r}"


@each_role
def test_defaults_have_the_type_they_are_documented_with(role):
    for name, option in options_of(role).items():
        value = option.get("default")
        if value is None or (isinstance(value, str) and "{{" in value):
            continue
        wanted = option.get("type", "str")
        fits = isinstance(value, TYPES[wanted])
        if isinstance(value, bool):
            fits = wanted in {"bool", "raw"}
        assert fits, f"{name}: {value!r} is not of type {wanted}"
        assert value in option.get("choices", [value]), f"{name}: {value!r} is no choice"


@each_role
def test_variables_carry_the_name_of_their_role(role):
    public = [*defaults_of(role), *options_of(role)]
    wrong = sorted({n for n in public if not n.startswith((f"{role}_", "spark_"))})
    assert not wrong, f"public variables begin with {role}_, cluster-wide ones with spark_: {wrong}"
    private = load(ROOT / "roles" / role / "vars" / "main.yml")
    results = ("spark_",) if role == "spark" else ()  # what that role computes for all others
    wrong = sorted(n for n in private if not n.startswith((f"__{role}_", *results)))
    assert not wrong, f"private variables begin with __{role}_: {wrong}"


def test_cluster_wide_variables_mean_the_same_in_every_role():
    meanings: dict[str, tuple[Any, Any]] = {}
    for role in ROLES:
        for name, option in options_of(role).items():
            if name.startswith("spark_"):
                meaning = (option.get("type", "str"), option.get("default"))
                first = meanings.setdefault(name, meaning)
                assert same(first, meaning), f"{name} is {meaning} in {role}, {first} elsewhere"


@each_text
def test_no_injected_facts_and_no_playbook_dir(text):
    content = text.read_text(encoding="utf-8")
    names = {m.group() for m in re.finditer(r"(?<![\w.])ansible_[a-z]\w*", content)}
    facts = sorted(n for n in names if not MAGIC.fullmatch(n))
    assert not facts, f"use ansible_facts[...] instead of {facts}"
    # When the collection is installed, playbook_dir is inside it: not where a user's files are.
    assert not re.search(r"\bplaybook_dir\b", content), "playbook_dir is not the user's directory"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An inventory of two Sparks that are this machine, unprepared and without privilege."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    inventory = {
        "sparks": {
            "hosts": {"spark1": {}, "spark2": {}},
            "vars": {
                "ansible_connection": "local",
                "ansible_become": False,
                "ansible_python_interpreter": python,
            },
        }
    }
    path = tmp_path / "bare.yml"
    path.write_text(yaml.safe_dump(inventory), encoding="utf-8")
    return path


@pytest.fixture
def role_playbook(tmp_path: Path, role: str) -> Path:
    path = tmp_path / "role.yml"
    play = {
        "name": f"Run {role} alone",
        "hosts": "sparks",
        "gather_facts": False,
        "roles": [f"sparkfleet.cluster.{role}"],
    }
    path.write_text(yaml.safe_dump([play], sort_keys=False), encoding="utf-8")
    return path


def assert_parses(run: Run) -> None:
    assert run.returncode == 0, run.output
    assert "WARNING" not in run.output, run.output


def assert_works_or_refuses(run: Run) -> None:
    """The run ends well, or in refusals the collection means; never in an accident."""
    assert run.hosts, f"the run did nothing on any host\n{run.output}"
    assert run.returncode in {0, 2}, run.output
    assert "Traceback" not in run.output, run.output
    assert "DEPRECATION" not in run.output, run.output
    accidents = [note for note in run.failed if not is_refusal(note)]
    assert not accidents, "\n".join([*map(str, accidents), run.output])


def is_refusal(note: Note) -> bool:
    """Ansible begins the message of whatever it or a plugin stumbled over with "Task failed"."""
    deliberate = {"fail", "assert", "validate_argument_spec"}
    namespace, _dot, name = note.action.rpartition(".")
    ours = namespace == "sparkfleet.cluster"
    return (ours or name in deliberate) and not note.message.startswith("Task failed")


@each_playbook
def test_playbook_syntax(playbook, bare, tmp_path):
    # No setting names the checkout's collection here: a playbook finds it by lying where it lies.
    nowhere = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path)}
    assert_parses(run_playbook(playbook, bare, "--syntax-check", env=nowhere))


@each_playbook
def test_playbook_check_mode_on_a_bare_host(playbook, bare):
    assert_works_or_refuses(run_playbook(playbook, bare, "--check", "--diff"))


LOOKING = {"doctor", "status", "logs", "verify", "benchmark"}
OTHERS = {"hold", "fleet", "upgrade", "router"}  # the lock, cells in turn, no host of a cell


@each_playbook
def test_who_changes_a_cell_holds_it_and_lets_go(playbook):
    """Also where it fails, if it is one play; of more the next run of its owner takes over."""
    plays = yaml.safe_load(playbook.read_text(encoding="utf-8"))
    imported = [play.get("ansible.builtin.import_playbook") for play in plays]
    holds = [name == "hold.yml" for name in imported]
    last = plays[-1].get("tasks", []) + plays[-1].get("post_tasks", [])
    work = [task for task in last if "block" in task]
    end = (work[0].get("always", []) if work else last)[-1:]
    goes = [task.get("ansible.builtin.import_tasks") for task in end] == ["tasks/let_go.yml"]
    changes = playbook.stem not in LOOKING | OTHERS and playbook.parent.name == "playbooks"
    assert (sum(holds), goes) == (int(changes), changes)
    before = plays[: holds.index(True)] if changes else []
    assert {play["hosts"] for play in before} <= {"localhost:all"}, "it works before it holds"


@each_role
def test_role_syntax(role, role_playbook, bare):
    assert_parses(run_playbook(role_playbook, bare, "--syntax-check"))


@each_role
def test_role_check_mode_on_a_bare_host(role, role_playbook, bare):
    assert_works_or_refuses(run_playbook(role_playbook, bare, "--check", "--diff"))


@each_plugin
def test_plugin_is_documented(plugin, tmp_path):
    kind, name = DOCUMENTED[plugin.parent.name], f"sparkfleet.cluster.{plugin.stem}"
    shown = subprocess.run(
        [sys.executable, "-m", "ansible", "doc", "--json", "-t", kind, name],
        env=ansible_env(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    page = json.loads(shown.stdout)[name]
    assert page["doc"]["short_description"]
    assert page["doc"]["description"]
    assert name in page["examples"], "EXAMPLES show the full name"
    if kind == "module":
        assert page["return"], "RETURN is empty"
        assert page["doc"].get("attributes", {}).keys() >= {"check_mode", "diff_mode"}, "attributes"


def test_every_action_has_the_module_that_documents_it():
    actions = {p.stem for p in (ROOT / "plugins" / "action").glob("*.py")} - {"__init__"}
    modules = {p.stem for p in (ROOT / "plugins" / "modules").glob("*.py")}
    assert not (lonely := sorted(actions - modules)), f"no plugins/modules file: {lonely}"


def test_changes_are_told():
    fragments = list((ROOT / "changelogs" / "fragments").glob("*.yml"))
    releases = load(ROOT / "changelogs" / "changelog.yaml").get("releases", {})
    version = load(ROOT / "galaxy.yml")["version"]
    assert fragments or version in releases, f"no fragment, and {version} is not released"
