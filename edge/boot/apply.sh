# Writes boot files as a plan says (see edge/boot/script.py). POSIX sh. Each file is written beside
# its place, flushed and renamed, so that a power cut leaves the old or the new one.
set -eu
umask 022
LC_ALL=C; export LC_ALL; PATH=$PATH:/usr/sbin:/sbin
root=  # where the files are; another one is for tests
new=
trap '[ -z "$new" ] || rm -f "$new" "$new.new"' EXIT
fail() { printf '%s\n' "$*" >&2; exit 1; }
sum() { set -- $(sha256sum < "$1"); echo "$1"; }
place() { if [ -L "$root$1" ]; then readlink -f "$root$1"; else echo "$root$1"; fi; }

# One run at a time: between the look at a file and its rename nobody else of ours writes it.
if command -v flock >/dev/null 2>&1; then
  exec 9< "$root/etc"; flock -w 120 9 || fail "another run is writing the boot files"
fi

# expect PATH SHA256|absent: the file is still what the plan was made from
expect() {
  if [ "$2" = absent ]; then
    [ ! -e "$root$1" ] || fail "$1 has come into being since it was looked for: nothing was written; run again"
  else
    [ -f "$root$1" ] && [ "$(sum "$root$1")" = "$2" ] ||
      fail "$1 has changed since it was looked at: nothing was written; run again"
  fi
}

# put PATH: the file's new content, base64 on standard input; mode and owner stay (FAT has none)
put() {
  to=$(place "$1"); mkdir -p "${to%/*}"
  new=$to.edge-new; rm -f "$new"
  if [ -e "$to" ]; then cp -p "$to" "$new" 2>/dev/null || :; fi
  base64 -d > "$new"
  sync "$new"
  mv -f "$new" "$to"; new=
  sync -f "$to"
}

# take PATH [FOLDER]: the file away, and its folders up to FOLDER where they are empty then
take() {
  to=$root$1; rm -f "$to"; to=${to%/*}
  while [ -n "${2-}" ]; do
    rmdir "$to" 2>/dev/null || break
    [ "$to" != "$root$2" ] || { to=${to%/*}; break; }
    to=${to%/*}
  done
  sync -f "$to"
}

# holds FILE KEYS WORD...: one line of FILE that begins with one of KEYS has all words
holds() {
  file=$1 keys=$2; shift 2
  awk -v keys=" $keys " -v want="$*" 'BEGIN { n = split(want, w, " ") }
    index(keys, " " tolower($1) " ") { line = " " $0 " "; gsub(/[ \t\r]+/, " ", line); all = 1
      for (i = 1; i <= n; i++) if (!index(line, " " w[i] " ")) all = 0
      if (all) found = 1 }
    END { exit !found }' "$file"
}

# last: the last words of a tool that failed
last() { printf '%s\n' "$said" | tail -n 5; }

# grub TOOL CONFIG WORD...: grub.cfg made anew, and only then put in the old one's place
# (grub-mkconfig itself copies over it, which a power cut would leave half done)
grub() {
  tool=$1 name=$2 cfg=$(place "$2"); shift 2
  case $tool in
    */update-grub) said=$("$root$tool" 2>&1) || fail "$tool failed: $(last)" ;;
    *)
      new=$cfg.edge-new; rm -f "$new" "$new.new"
      said=$("$root$tool" -o "$new" 2>&1) || fail "$tool failed, and $name is as it was: $(last)"
      holds "$new" "linux linuxefi linux16" || fail "$tool made a file that starts no Linux, and $name is as it was"
      check_grub "$new" "$@"
      chmod "$(stat -c %a "$cfg")" "$new" 2>/dev/null || :
      sync "$new"; mv -f "$new" "$cfg"; new= ;;
  esac
  sync -f "$cfg"
  check_grub "$cfg" "$@"
}
check_grub() {
  made=$1; shift
  holds "$made" "linux linuxefi linux16" "$@" ||
    fail "$tool was run, and no entry it makes has all of: $*. What sets them anew in /etc/default/grub.d or /etc/grub.d?"
}

# u_boot_menu TOOL CONFIG WORD...
u_boot_menu() {
  tool=$1 name=$2; shift 2
  said=$("$root$tool" 2>&1) || fail "$tool failed: $(last)"
  sync -f "$root$name"
  holds "$root$name" append "$@" || fail "$tool was run, and no entry in $name has all of: $*"
}

# kernelstub TOOL CONFIG DELETE ADD
kernelstub() {
  for change in "--delete-options=$3" "--add-options=$4"; do
    [ -n "${change#*=}" ] || continue
    said=$("$root$1" "${change%%=*}" "${change#*=}" 2>&1) || fail "$1 ${change%%=*} failed: $(last)"
  done
  sync -f "$root$2"
  for word in $4; do grep -qF "\"$word\"" "$root$2" || fail "$1 was run, and $2 has no $word"; done
}
