#!/bin/sh
# Makes the agent's user and folders, and restarts an agent that runs. User data enables the unit.
set -e
getent group nstance-agent >/dev/null || groupadd --system nstance-agent
getent passwd nstance-agent >/dev/null ||
	useradd --system --gid nstance-agent --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nstance-agent
systemd-tmpfiles --create nstance-agent.conf
if test -d /run/systemd/system; then
	systemctl daemon-reload
	systemctl try-restart nstance-agent.service
fi
