"""Runs in the environment of the real SGLang: tells what its own parser makes of arguments.

Reads lists of arguments as JSON from standard input, by name, and writes for each the values that
were asked for in ``WANTED``, or the error.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, NoReturn

from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found,unused-ignore]


class Parser(argparse.ArgumentParser):
    """The parser that SGLang fills, but one that does not end the program."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main() -> None:
    answers: dict[str, dict[str, Any]] = {}
    parser = Parser(prog="sglang serve")  # as the server makes it; it takes --tp for --tp-size
    ServerArgs.add_cli_args(parser)
    for name, words in json.load(sys.stdin).items():
        try:
            found = vars(parser.parse_args(words))
        except ValueError as error:
            answers[name] = {"error": str(error)}
        else:
            answers[name] = {key: value for key, value in found.items() if _plain(value)}
    json.dump(answers, sys.stdout)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


if __name__ == "__main__":
    main()
