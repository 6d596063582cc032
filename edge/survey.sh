# What this host is and what edge-llm has left on it. POSIX sh; reads only; prints sections:
# "@@name", then that section's lines. What could not be read is named in "@@unreadable".
LC_ALL=C; export LC_ALL; PATH=$PATH:/usr/sbin:/sbin
root=  # where boot files are looked for; another one is for tests
say() { printf '@@%s\n' "$1"; }
missed=
miss() { missed="$missed$1
"; }
# show NAME FILE: the file as a section, if there is one
show() { say "$1"; [ -e "$2" ] || return 0; cat "$2" 2>/dev/null || miss "$2"; echo; }
first() { value=; [ -r "$1" ] && read -r value < "$1" 2>/dev/null; }
have() { command -v "$1" >/dev/null 2>&1; }

show os /etc/os-release
say kernel; uname -m; uname -r; getconf LONG_BIT 2>/dev/null
say page_size; getconf PAGE_SIZE
say glibc; getconf GNU_LIBC_VERSION 2>/dev/null
say boot_id; cat /proc/sys/kernel/random/boot_id
say user; id -u
say cpuinfo; awk '/^$/ { exit } { print }' /proc/cpuinfo 2>/dev/null || miss /proc/cpuinfo

say cpus
for d in /sys/devices/system/cpu/cpu[0-9]*; do
  [ -d "$d/topology" ] || continue
  first "$d/topology/core_id"; core=$value
  first "$d/topology/physical_package_id"; package=$value
  first "$d/online"; online=${value:-1}
  node=; for n in "$d"/node[0-9]*; do [ -e "$n" ] && node=${n##*/node}; done
  echo "${d##*/cpu} ${core:-0} ${package:-0} ${node:-0} $online"
done
say numa
for d in /sys/devices/system/node/node[0-9]*; do
  [ -r "$d/meminfo" ] && echo "${d##*/node} $(awk '/MemTotal/ { print $4 }' "$d/meminfo")"
done
say memory; awk '/^(MemTotal|MemAvailable|SwapTotal):/ { print $1, $2 }' /proc/meminfo

say disk
for p in /opt/edge-llm /var/lib/edge-llm /etc; do
  q=$p; while [ ! -e "$q" ]; do q=${q%/*}; q=${q:-/}; done
  free=$(df -Pk "$q" | awk 'NR == 2 { print $4, $6 }')
  atime=$(awk -v m="${free#* }" '$2 == m { o = "," $4 "," } END {
    print o ~ /,noatime,/ ? "noatime" : o ~ /,relatime,/ ? "relatime" : o ? "strictatime" : "" }' \
    /proc/self/mounts)
  echo "$p $free $([ -w "$q" ] && echo rw || echo ro) $atime"
done

say dt_model
for f in $root/proc/device-tree/model $root/sys/firmware/devicetree/base/model; do
  if [ -r $f ]; then tr -d '\000' < $f; echo; break; fi
done
say dmi
for k in sys_vendor product_name board_name; do first /sys/class/dmi/id/$k; echo "$k $value"; done

say cpufreq
for d in /sys/devices/system/cpu/cpufreq/policy[0-9]*; do
  [ -d "$d" ] || continue
  first "$d/scaling_driver"; driver=$value
  first "$d/scaling_governor"; governor=$value
  first "$d/scaling_available_governors"; governors=$(echo $value | tr ' ' ,)
  first "$d/energy_performance_preference"; epp=$value
  first "$d/energy_performance_available_preferences"; epps=$(echo $value | tr ' ' ,)
  echo "${d##*/policy} ${driver:--} ${governor:--} ${governors:--} ${epp:--} ${epps:--}"
done
say cpuidle
first /sys/devices/system/cpu/cpuidle/current_driver; echo "driver ${value:-none}"
states() {
  for d in "$1"/cpuidle/state[0-9]*; do
    [ -d "$d" ] || continue
    first "$d/name"; name=$value; first "$d/latency"; latency=$value; first "$d/disable"
    echo "state ${d##*/state} ${latency:-0} ${value:-0} ${name:-?}"
  done
}
of_cpu0=$(states /sys/devices/system/cpu/cpu0); echo "$of_cpu0"
# Other CPUs only where they differ: another kind of core, or a state that somebody switched.
for c in /sys/devices/system/cpu/cpu[0-9]*; do
  own=$(states "$c")
  if [ -n "$own" ] && [ "$own" != "$of_cpu0" ]; then echo "cpu ${c##*/cpu}"; echo "$own"; fi
done
show known_idle /var/lib/edge-llm/idle-states
say knobs
for f in /sys/devices/system/cpu/cpu[0-9]*/power/energy_perf_bias \
  /sys/firmware/acpi/platform_profile /sys/kernel/mm/transparent_hugepage/enabled; do
  first "$f"; now=$value; first "${f}_choices"
  [ -z "$now" ] || echo "$f|$now|$value"
done

# What the kernel was started with, and the boot files: byte for byte, as base64.
say cmdline; tr '\200-\377' '?' < $root/proc/cmdline; echo
say boot
if [ -d $root/sys/firmware/efi ]; then echo efi yes; fi
for v in LoaderInfo StubInfo; do
  f=$root/sys/firmware/efi/efivars/$v-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
  if [ -r "$f" ]; then echo "$v $(tr -cd ' -~' < "$f")"; fi
done
for k in u-boot,version os_prefix; do
  f=$root/proc/device-tree/chosen/$k
  if [ -r "$f" ]; then echo "$k $(tr -cd ' -~' < "$f")"; fi
done
for f in /boot/firmware/config.txt /boot/config.txt; do
  [ -f "$root$f" ] && sed -n 's/^[[:blank:]]*\(cmdline=\|os_prefix=\)/config_txt \1/p' "$root$f" | tr -cd '\n -~'
done
for d in /etc/default/grub.d /etc/kernel /etc/u-boot-menu /etc/u-boot-menu/conf.d; do
  if [ -d $root$d ]; then echo "folder $d"; fi
done
for t in update-grub grub-mkconfig grub2-mkconfig kernelstub u-boot-update; do
  for d in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
    if [ -x $root$d/$t ]; then echo "tool $t $d/$t"; break; fi
  done
done
for d in /usr/local/sbin /usr/sbin /usr/bin /sbin; do
  if grep -qs 'default/grub\.d' $root$d/grub-mkconfig $root$d/update-grub; then echo drop-ins grub; fi
  if grep -qs 'u-boot-menu/conf\.d' $root$d/u-boot-update; then echo drop-ins u-boot; fi
done
say boot_mounts
for p in /etc /boot /boot/firmware /boot/efi /efi; do
  [ -d $root$p ] || continue
  # The last of those that are mounted on it or above it.
  mount=$(awk -v p=$p '{ m = $2; if (m == p || m == "/" || index(p, m "/") == 1) {
    if (length(m) >= length(best)) { best = m; how = $4 } } }
    END { print best, (("," how ",") ~ /,ro,/ ? "ro" : "rw") }' $root/proc/mounts 2>/dev/null)
  echo "$p $(df -Pk $root$p | awk 'NR == 2 { print $4 }') ${mount:-/ rw}"
done
say grub_cfg
for f in $root/boot/grub/grub.cfg $root/boot/grub2/grub.cfg $root/boot/efi/EFI/*/grub.cfg \
  $root/efi/EFI/*/grub.cfg; do
  [ -f "$f" ] || continue
  [ -r "$f" ] || { miss "${f#"$root"}"; continue; }
  grep -q '^[[:blank:]]*blscfg' "$f" && bls=bls || bls=-
  echo "$bls $(grep -E '^[[:blank:]]*linux(efi|16)?[[:blank:]]' "$f" | base64 | tr -d '\n')" "${f#"$root"}"
done
say boot_files
seen=
for f in $root/etc/default/grub $root/etc/default/grub.d/*.cfg* $root/etc/kernel/cmdline* \
  $root/usr/lib/kernel/cmdline $root/etc/kernelstub/configuration $root/boot/firmware/cmdline.txt* \
  $root/boot/cmdline.txt* $root/boot/armbianEnv.txt* $root/boot/extlinux/extlinux.conf* \
  $root/etc/default/u-boot $root/usr/share/u-boot-menu/conf.d/*.conf \
  $root/etc/u-boot-menu/conf.d/*.conf* $root/boot/loader/entries/*.conf* \
  $root/efi/loader/entries/*.conf* $root/boot/efi/loader/entries/*.conf* \
  $root/boot/grub*/grub.cfg.edge-new* \
  $root/var/lib/edge-llm/boot.json*; do
  [ -f "$f" ] || continue
  [ -r "$f" ] || { miss "${f#"$root"}"; continue; }
  # Two names of one folder (a link, a second mount) are one file.
  id=$(stat -Lc %d:%i "$f"); case "$seen" in *" $id "*) continue ;; esac; seen="$seen $id "
  echo "$(stat -Lc %s "$f") $(head -c 65536 "$f" | base64 | tr -d '\n') ${f#"$root"}"
done

say cgroup
type=$(stat -fc %T /sys/fs/cgroup 2>/dev/null)
if [ "$type" = cgroup2fs ]; then echo v2; cat /sys/fs/cgroup/cgroup.controllers
else echo v1; awk 'NR > 1 && $4 == 1 { printf "%s ", $1 } END { print "" }' /proc/cgroups; fi
say systemd; value=$(systemctl --version 2>/dev/null | head -n 1); echo "${value:-none}"
first /proc/1/comm; echo "$value"

say swaps; awk 'NR > 1 { print $1, $3 }' /proc/swaps 2>/dev/null
first /run/edge-llm-zram; [ -z "$value" ] || echo "ours ${value%% *}"
say zram; { [ -d /sys/class/zram-control ] || modprobe -qn zram 2>/dev/null; } && echo yes
say watchdog
for d in /sys/class/watchdog/watchdog[0-9]*; do
  [ -e "/dev/${d##*/}" ] || continue
  first "$d/max_timeout"; most=$value; first "$d/identity"
  echo "device ${d##*/} ${most:-0} $value"
done
echo "runtime $(systemctl show -P RuntimeWatchdogUSec 2>/dev/null)"

say rivals
systemctl show -p Id -p LoadState -p ActiveState -p UnitFileState power-profiles-daemon.service \
  tuned.service tuned-ppd.service tlp.service tlp-pd.service auto-cpufreq.service \
  cpufreqd.service com.system76.PowerDaemon.service laptop-mode.service 2>/dev/null | sed 's/^$/--/'
say throttled; if have vcgencmd; then vcgencmd get_throttled 2>/dev/null || miss vcgencmd; fi
say tools
for t in python3 curl sudo tar gzip sha256sum apt-get systemd-run flock; do
  if have $t; then echo $t; fi
done
say python; if have python3; then python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'; fi
say libgomp; ls /usr/lib/*/libgomp.so.1 /usr/lib64/libgomp.so.1 2>/dev/null | head -n 1

say account; getent group edge-llm >/dev/null && id -u edge-llm 2>/dev/null

for d in /var/lib/edge-llm /etc/edge-llm; do
  if [ -d $d ]; then [ -r $d ] && [ -x $d ] || miss $d; fi
done
say folders
for d in /etc/edge-llm /var/lib/edge-llm /opt/edge-llm /opt/edge-llm/* /opt/edge-llm/*/releases \
  /opt/edge-llm/*/incoming /opt/edge-llm/*/releases/* /opt/edge-llm/models/*; do
  [ -d "$d" ] && stat -Lc '%a %U:%G %n' "$d"
done
say manifest
if [ -e /var/lib/edge-llm/manifest.json ]; then
  cat /var/lib/edge-llm/manifest.json 2>/dev/null || miss /var/lib/edge-llm/manifest.json; echo
fi
say releases
for kind in engine proxy; do
  for d in /opt/edge-llm/$kind/releases/*/; do
    [ -e "$d.complete" ] && { d=${d%/}; echo "$kind ${d##*/}"; }
  done
  [ -L /opt/edge-llm/$kind/current ] && echo "$kind-current $(readlink /opt/edge-llm/$kind/current)"
done
say models
for f in /opt/edge-llm/models/*/*; do
  [ -f "$f" ] || continue
  stamp=; first "${f%/*}/.verified"; stamp=$value
  echo "$(stat -c '%s %Y %n' "$f") ${stamp:--}"
done
# Drop-ins of our units, by their names or by what these begin with: none of them is ours. (Those for
# every unit of a kind, as service.d, are left to the verification to tell of.)
overrides=
for u in edgellm.slice llama-server.service chat-proxy.socket chat-proxy.service \
  edge-llm-tuning.service edge-llm-tuning.timer llama-.service chat-.socket chat-.service \
  edge-.service edge-llm-.service edge-.timer edge-llm-.timer; do
  for d in /etc/systemd/system /run/systemd/system /etc/systemd/system.control \
    /run/systemd/system.control /usr/local/lib/systemd/system; do
    overrides="$overrides $d/$u.d/*.conf"
  done
done
say files
for f in /etc/edge-llm/* /etc/systemd/system/edge-llm* /etc/systemd/system/edgellm.slice \
  /etc/systemd/system/llama-server.service \
  /etc/systemd/system/chat-proxy.* /opt/edge-llm/bin/* /etc/systemd/journald.conf.d/*edge-llm* \
  /etc/systemd/system.conf.d/*edge-llm* $overrides; do
  [ -f "$f" ] || continue
  if [ -r "$f" ]; then sum=$(sha256sum < "$f"); echo "${sum%% *} $(stat -c '%a %U:%G' "$f") $f"
  else miss "$f"; fi
done

# The engine's key is looked at here and never printed.
say engine_key
engine_env=/etc/edge-llm/engine.env; engine_key=
if [ -f $engine_env ] && [ ! -L $engine_env ] && [ -r $engine_env ]; then
  engine_key=$(cat $engine_env)
  if [ "$(stat -c '%a %U:%G %s' $engine_env)" = "600 root:root 79" ] &&
    grep -qx 'LLAMA_API_KEY=[0-9a-f]\{64\}' $engine_env; then echo ok; fi
fi

# When journald started, and when our drop-in for it was written.
say journald
systemctl show --timestamp=unix -P ActiveEnterTimestamp systemd-journald.service 2>/dev/null | tr -d @
stat -c %Y /etc/systemd/journald.conf.d/50-edge-llm.conf 2>/dev/null

say units
systemctl show -p Id -p LoadState -p ActiveState -p SubState -p Result -p UnitFileState -p MainPID \
  -p NRestarts -p NeedDaemonReload -p DropInPaths -p CPUQuotaPerSecUSec -p CPUWeight -p IOWeight \
  -p MemoryHigh -p MemoryMax -p ControlGroup edgellm.slice llama-server.service \
  chat-proxy.socket chat-proxy.service edge-llm-tuning.service edge-llm-tuning.timer 2>/dev/null |
  sed 's/^$/--/'
say running
for unit in llama-server chat-proxy; do
  pid=$(systemctl show -P MainPID $unit.service 2>/dev/null)
  [ "${pid:-0}" -gt 0 ] 2>/dev/null || continue
  digest=; other=
  if [ -r /proc/$pid/environ ]; then
    key=$(tr '\000' '\n' < /proc/$pid/environ | grep '^LLAMA_API_KEY=')
    [ "$key" = "$engine_key" ] || other=1
    digest=$(tr '\000' '\n' < /proc/$pid/environ | sed -n 's/^EDGE_LLM_DIGEST=//p')
  else miss /proc/$pid/environ; fi
  stale=$(grep -m 1 -o '/opt/edge-llm/models/.* (deleted)$' /proc/$pid/maps 2>/dev/null)
  echo "$unit $pid ${digest:--}${stale:+ stale}${other:+ other-key}"
done
say unreadable; printf '%s' "$missed"
