#!/usr/bin/env bash
# Makes a guest for provider qemu without an image: guest.sh FOLDER AGENT writes
# FOLDER/vmlinuz and FOLDER/initrd. The kernel is Debian's for clouds, downloaded
# and unpacked, not installed; the initramfs has busybox, the modules of QEMU's
# virtual devices and the program AGENT as /bin/nstance-agent, which must be
# static. Needs Debian's packages busybox-static and cpio.
set -euo pipefail
out=$(realpath -m "$1") agent=$(realpath "$2")
init=$(dirname "$(realpath "$0")")/init
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! compgen -G "$out/kernel/boot/vmlinuz-*" >/dev/null; then
	package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | sed -n 1p)
	(cd "$work" && apt-get download -q "$package")
	rm -rf "$out/kernel"
	dpkg -x "$work"/*.deb "$work/kernel"
	mv "$work/kernel" "$out/kernel"
fi
cp "$out"/kernel/boot/vmlinuz-* "$out/vmlinuz.new"

root=$work/root
mkdir -p "$root"/{bin,modules,proc,sys,dev,etc,run,tmp,root}
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$agent" "$root/bin/nstance-agent"
cp "$init" "$root/init"
chmod 755 "$root/init" "$root/bin/"*
sed -n '/^for m in /,/; do$/p' "$init" | tr -d '\\;' | sed 's/^for m in//; s/ do$//' | tr -s ' \t\n' '\n' | grep . | while read -r m; do
	find "$out/kernel" -name "$m.ko" -exec cp {} "$root/modules/" \; -quit
	test -f "$root/modules/$m.ko" || { echo "the kernel has no module $m" >&2; exit 1; }
done
(cd "$root" && find . | sort | cpio --quiet -o -H newc -R 0:0 | gzip -1 -n) > "$out/initrd.new"
mv "$out/vmlinuz.new" "$out/vmlinuz"
mv "$out/initrd.new" "$out/initrd"
