#!/bin/sh
# Stops and disables the unit when the package goes, not when another version comes: dpkg says
# "remove", rpm the number of versions that stay.
case "$1" in
remove | 0) systemctl --no-reload disable --now nstance-server.service || true ;; # a machine without systemd has nothing to stop
esac
