# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a backend does: hosts that run, and the carrier of their plugs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lab.cabling import End
from lab.network import Network
from lab.spec import Host, Lab


class Backend(Protocol):
    """Hosts of one lab. Every method can be repeated."""

    boot_seconds: float  # until ssh must answer, generously

    def __init__(self, lab: Lab, network: Network) -> None: ...

    def prepare(self) -> None:
        """Programs, images, engine: what is made once and kept between labs."""

    def up(self, hosts: Sequence[Host]) -> None:
        """Make and start the hosts that do not run, with their ports plugged in."""

    def down(self) -> None:
        """Remove everything that belongs to this lab, whatever state it is in."""

    def running(self, host: Host) -> bool: ...

    def stop(self, host: Host) -> None:
        """A power cut."""

    def start(self, host: Host) -> None: ...

    def reboot(self, host: Host) -> None:
        """From the power button: the disk stays, memory does not."""

    def set_carrier(self, ends: Sequence[End], on: bool) -> None:
        """What the far side of a plug does to the port's carrier, beyond the wires' own state."""

    def console(self, host: Host) -> str:
        """The last lines the host printed while booting."""

    def stood_in(self) -> dict[str, str]:
        """What is not real here: {what: by what}."""
