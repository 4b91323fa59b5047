"""Servers in containers, by testcontainers: the provider ``containers``, and what all its servers can be asked for.

The same as of a local process, and two things that a process has not: pausing takes everything in the container at
once, and a container can be taken off its network, where it runs on and is reached by nobody. A client that came by
the published port is reset then, and finds nobody to connect to; one that came by the container's own address hears
nothing any more. The server itself notices neither.

Needs an engine on this machine, and images: ``tools/containers.sh`` sees to both.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from spark_2pc_sink.testing import CapabilityError, ServerError
from spark_2pc_sink.testing.lifetime import Lifetime

#: A start takes two to five seconds, of a cluster ten; this is for a machine that is busy with something else.
START_DEADLINE_S = 240.0
STOP_DEADLINE_S = 20
_LOG_TAIL_LINES = 40
#: What containers and networks of one run are labelled with, so that tools/containers.sh finds those that a killed run
#: left on an engine that goes on.
LABEL = "spark-2pc.run"
_LABELS = {LABEL: os.environ.get("SPARK_2PC_CONTAINERS_RUN", "by-hand")}

# The container that would clean up after us comes from a registry, which is not everywhere.
testcontainers_config.ryuk_disabled = True


class ContainerServer(Lifetime):
    """A server in a container of its own, with ports of 127.0.0.1 that stay the same over restarts.

    Args:
        image: its name.
        ports: ports in the container, and where on 127.0.0.1 they are published.
        environment: variables of the container.
        command: of the container; None for the image's.
        network: on which it is reached by ``alias``; None for one of its own.
        alias: its name there.
    """

    def __init__(
        self,
        image: str,
        *,
        ports: Mapping[int, int],
        environment: Mapping[str, str],
        command: Sequence[str] | None = None,
        network: Network | None = None,
        alias: str = "server",
    ) -> None:
        self._network = network or make_network()
        self._owns_network = network is None
        self._alias = alias
        self._container = DockerContainer(image, env=dict(environment), network=self._network)
        self._container.with_network_aliases(alias).with_kwargs(labels=_LABELS)
        # Not by with_bind_ports, which takes no address: published to the whole world then.
        addresses: Any = {f"{inside}/tcp": ("127.0.0.1", outside) for inside, outside in ports.items()}
        self._container.ports = addresses
        if command is not None:
            self._container.with_command(list(command))
        self._created = False
        self._address_before = ""

    @abstractmethod
    def _serves(self) -> bool:
        """Whether clients are let in."""

    def start(self) -> None:
        """Start it on the data that it has, and wait until it serves.

        Raises:
            ServerError: it ended, or did not serve in time; the text has the end of its log.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it without waiting: for clusters, where no node is ready before the others are there."""
        if self._created:
            self._wrapped.start()
        else:
            self._container.start()
            self._created = True

    def wait_until_ready(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until it serves.

        Raises:
            ServerError: it ended, or was not ready in time.
        """
        end = time.monotonic() + deadline_s
        while not self._serves():
            if self._status() == "exited":
                raise ServerError(f"the container ended by itself. Its log ends:\n{self.log_tail()}")
            if time.monotonic() > end:
                raise ServerError(
                    f"the container did not serve within {deadline_s} s. Its log ends:\n{self.log_tail()}"
                )
            time.sleep(0.1)

    def kill(self) -> None:
        """End everything in it with SIGKILL. :meth:`start` starts it again on the same data."""
        self._wrapped.kill()
        self._wrapped.wait()

    def stop(self) -> None:
        """End it in an orderly way; nothing happens if it does not run."""
        if self._status() == "paused":
            self.resume()
        self._wrapped.stop(timeout=STOP_DEADLINE_S)

    def restart(self) -> None:
        """Stop it, if it runs, and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze everything in it at once: connections stay open and nothing answers."""
        self._wrapped.pause()

    def resume(self) -> None:
        """Let it go on."""
        self._wrapped.unpause()

    def disconnect(self) -> None:
        """Take it off its network. It runs on, reaches nobody, and is reached by nobody."""
        self._address_before = self.address
        self._docker_network.disconnect(self._wrapped)

    def connect(self) -> None:
        """Put it back on its network, at the same address; nothing happens if it is there.

        Raises:
            ServerError: it has got another address, because another container has taken this one.
        """
        if self._on_network():
            return
        self._docker_network.connect(self._wrapped, aliases=[self._alias])
        if self.address != self._address_before:
            raise ServerError(f"the container came back as {self.address}, and was {self._address_before}")

    def heal(self) -> None:
        """Undo every fault that it is still under, and wait until it serves."""
        status = self._status()
        if status == "paused":
            self.resume()
        elif status == "exited":
            self.launch()
        self.connect()
        self.wait_until_ready()

    @property
    def address(self) -> str:
        """Its address on its network, which this machine reaches without the engine's proxy."""
        (address,) = self._on_network()
        return address

    def close(self) -> None:
        """End it and remove it with its data and its network."""
        self._container.stop()
        if self._owns_network:
            self._network.remove()

    def log_tail(self) -> str:
        """The end of what it has said."""
        text: bytes = self._wrapped.logs(tail=_LOG_TAIL_LINES)
        return text.decode(errors="replace")

    @property
    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()

    @property
    def _docker_network(self) -> Any:
        return self._network._unwrap_network

    def _on_network(self) -> list[str]:
        """Its address, if it is on its network."""
        self._wrapped.reload()
        networks = self._wrapped.attrs["NetworkSettings"]["Networks"]
        return [networks[name]["IPAddress"] for name in networks if name == self._docker_network.name]

    def _status(self) -> str:
        self._wrapped.reload()
        status: str = self._wrapped.status
        return status


def make_network() -> Network:
    """A network for containers, to be removed by the caller."""
    return Network(docker_network_kw={"labels": _LABELS}).create()


def require_image(variable: str, default: str) -> str:
    """The image that ``variable`` names, or the default, fetched if it is not there.

    Raises:
        CapabilityError: there is no engine, or no such image.
    """
    image = os.environ.get(variable, default)
    try:
        client = DockerClient().client
    except DockerException as error:
        raise CapabilityError(f"no container engine answers ({error}): run `make containers`") from error
    try:
        client.images.get(image)
    except ImageNotFound:
        try:
            client.images.pull(image)
        except APIError as error:
            raise CapabilityError(
                f"no image {image} ({error.explanation}): see docker/images.sh, or set {variable}"
            ) from error
    finally:
        client.close()
    return image
