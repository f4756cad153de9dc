"""`pullback cache`: what is stored on disk, and how to empty it."""

from __future__ import annotations

import click


@click.group()
def cache() -> None:
    """Show or empty the cache of compiled kernels."""


@cache.command()
def info() -> None:
    """Show the folder of the cache and its contents."""
    from pullback import caches
    from pullback.node import calls as node

    click.echo(caches.root())
    for folder in caches.contents():
        click.echo(f"{folder.kind}: {folder.entries}, {folder.size / 1024:.0f} KiB")
    if trouble := node.EXTENSION.trouble():
        click.echo(f"a node cannot be compiled here, small calls run in Python: {trouble}")


@cache.command()
@click.option("--certificates", is_flag=True, help="Also delete certificates, which take a search to find.")
def clear(certificates: bool) -> None:
    """Delete compiled kernels; they are rebuilt on demand."""
    from pullback import caches

    for kind in caches.KINDS:
        if kind == "certificates" and not certificates:
            continue
        count = caches.clear(kind)
        if count or kind in ("kernels", "certificates"):
            click.echo(f"removed {count} {kind if count != 1 else kind.removesuffix('s')}")
