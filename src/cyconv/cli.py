"""The command line: ``demo``, ``train``, ``info`` and ``explain``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, by default those of the process.

    Returns
    -------
    int
        0 for success, 1 if an optional package is missing, 2 for an argument that cannot be used.
    """
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except ImportError as error:
        print(f"cyconv: {error}", file=sys.stderr)
        return 1
    except (ValueError, NotImplementedError, OSError) as error:
        print(f"cyconv: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cyconv", description="Fast convolution for NumPy arrays."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="detect text in two images and time every layer")
    demo.add_argument("--output", metavar="PNG", default="cyconv-demo.png", help="picture to write")
    demo.add_argument("--image", metavar="PATH", help="an image of your own instead of the two")
    demo.add_argument("--threads", type=int, metavar="N", help="default: all cores")
    demo.add_argument("--strategy", metavar="NAME", help="default: the choice of cyconv")
    demo.add_argument("--json", action="store_true", help="print JSON instead of tables")
    demo.set_defaults(run=_demo)

    train = commands.add_parser("train", help="train a small network on real data, from nothing")
    train.add_argument("task", nargs="?", default="digits", help="digits (default) or denoise")
    train.add_argument("--output", metavar="PNG", default="cyconv-train.png", help="the picture")
    train.add_argument("--epochs", type=int, metavar="N", help="default: what the task needs")
    train.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW")
    train.add_argument("--seed", type=int, default=0, metavar="N")
    train.add_argument("--threads", type=int, metavar="N", help="default: all cores")
    train.add_argument("--json", action="store_true", help="print JSON instead of text")
    train.set_defaults(run=_train)

    info = commands.add_parser("info", help="show version, processor, libraries and settings")
    info.set_defaults(run=_info)

    explain = commands.add_parser("explain", help="show which strategy a problem gets, and why")
    explain.add_argument(
        "problem",
        nargs="+",
        help='such as "fwd f32 nchw n8 g1 ci64 co96 i56x56 k3x3 s1 p1 d1"',
    )
    explain.set_defaults(run=_explain)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    from . import demo  # it needs packages that the other commands do not

    return demo.run(
        output=arguments.output,
        image=arguments.image,
        threads=arguments.threads,
        strategy=arguments.strategy,
        as_json=arguments.json,
    )


def _train(arguments: argparse.Namespace) -> int:
    from . import training

    return training.run(
        arguments.task,
        output=arguments.output,
        epochs=arguments.epochs,
        layout=arguments.layout,
        seed=arguments.seed,
        threads=arguments.threads,
        as_json=arguments.json,
    )


def _info(arguments: argparse.Namespace) -> int:
    import cyconv

    print(cyconv.show_config())
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    import cyconv

    plan = cyconv.plan(" ".join(arguments.problem))
    print(f"problem    {plan.problem}")
    print(f"strategy   {plan.strategy}: {plan.reason}")
    print(f"work       {plan.problem.flop:,} FLOP, {plan.workspace_nbytes:,} bytes of workspace")
    for name, reason in plan.refusals.items():
        print(f"refused    {name}: {reason}")
    return 0
