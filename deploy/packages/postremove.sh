#!/bin/sh
# Configuration, identities, data and users stay, also when dpkg purges: keys are among them.
if test -d /run/systemd/system; then
	systemctl daemon-reload
fi
