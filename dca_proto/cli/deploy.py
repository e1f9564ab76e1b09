"""`dca federation deploy` writes all files of a federation on named machines."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from dca_proto.cli import members
from dca_proto.cli.options import parse_names
from dca_proto.cli.output import tell
from dca_proto.errors import UsageError

EXAMPLES = """Examples:

  dca federation deploy hearts --hosts berlin=10.0.0.1,paris=10.0.0.2,rome=10.0.0.3
      three Compute nodes; berlin also has the broker and the registrar, and rome the trainer

  dca federation deploy hearts --hosts berlin=10.0.0.1,paris=10.0.0.2,lab=lab.example --nodes berlin,paris --broker lab

Copy each machine's folder to /var/lib/dca there, or run `ansible-playbook -i inventory.ini playbook.yaml` or `docker
compose up` in the new folder. The folder `owner` has the enrolment key and the CA's key: keep it offline.

Whoever has the whole folder has the keys of all Compute nodes. Nodes of several owners make their own: dca keygen.
"""


def deploy(
    folder: Annotated[Path, typer.Argument(help="The new folder.")],
    hosts: Annotated[str, typer.Option(help="All machines, NAME=ADDRESS,...", callback=parse_names)],
    name: Annotated[
        str | None, typer.Option(help="The federation's: lower-case letters, digits, dashes. By default the folder's.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(help="The machines with a Compute node; by default all.", callback=parse_names)
    ] = None,
    broker: Annotated[str | None, typer.Option(help="The machine with the broker; by default the first.")] = None,
    trainer: Annotated[str | None, typer.Option(help="The machine with the trainer; by default the last.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65534, help="Of the broker; the registrar's is one higher.")] = 8883,
    clients: members.RegistrarClients = 100,
    per_day: members.RegistrarPerDay = 100,
    days: members.CertificateDays = 90,
    for_days: members.RegistrarDays = 365,
    colluding: Annotated[
        int, typer.Option(help="p, the most Compute nodes that may be corrupt; 0 for all but one.", metavar="P")
    ] = 0,
    clients_min: members.ClientsMin = members.SMALLEST,
    containers: Annotated[
        int, typer.Option(min=0, max=1000, help="Trial: also write clients.yaml, with so many devices in containers.")
    ] = 0,
) -> None:
    """Write all files of a federation on named machines: keys, TLS, passwords, configurations, units."""
    from dca_proto.deploy.folder import write_deployment  # imports cryptography, of an extra
    from dca_proto.deploy.plan import OWNER, Plan, floors_of, read_hosts

    known = read_hosts(hosts)
    plan = Plan(
        federation=name or folder.name,
        hosts=known,
        nodes=tuple(nodes or [host.name for host in known]),
        broker=broker or known[0].name,
        trainer=trainer or known[-1].name,
        port=port,
        clients=clients,
        per_day=per_day,
        days=days,
        for_days=for_days,
        colluding=colluding,
        containers=containers,
        floors=floors_of(clients_min),
    )
    if len(plan.nodes) < 2:
        raise UsageError(f"found {len(plan.nodes)} Compute nodes, expected at least 2; name more --hosts or --nodes")
    members.check_colluding("--colluding ", colluding, len(plan.nodes))
    made = write_deployment(folder, plan, datetime.datetime.now(datetime.UTC))
    tell(f"federation  {made.federation.name}: {members.colluding_in_words(made.federation)}")
    for host in known:
        runs = ", ".join(made.units[host.name]) or "no unit"
        tell(f"host        {folder / host.name}: at {host.address}; {runs}")
    if plan.suggestion:
        tell(f"floors      sums of {clients_min} or more; invitations suggest that to devices, whose owners decide:")
        tell(f"            {folder / plan.broker / 'policy.toml'}")
    tell(f"registrar   {members.limits_in_words(made.federation.registrars[0])}")
    tell(f"trainer     {folder / plan.trainer / 'trainer.toml'}")
    tell(f"owner       {folder / OWNER}: it can enrol clients and certify servers; keep it secret and offline")
