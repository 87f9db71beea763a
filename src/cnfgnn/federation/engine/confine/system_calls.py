"""The numbers of system calls on the two machines that we know, x86-64 and 64-bit ARM."""

from __future__ import annotations

import os
import sys

MACHINES = ("x86_64", "aarch64")
# The highest number of Linux 6.18. What later versions add is not there for a confined process.
HIGHEST = 469

Numbers = dict[str, tuple[int | None, int | None]]  # x86_64, aarch64; None: there is no such call


def _numbers(*lines: str) -> Numbers:
    """Calls as `name:number on x86_64:number on aarch64`; those with one number have it on both."""
    found: Numbers = {}
    for word in " ".join(lines).split():
        name, first, *other = word.split(":")
        numbers = [int(number) if number else None for number in (first, *other)]
        found[name] = (numbers[0], numbers[-1])
    return found


DENIED = _numbers(
    # other processes: their memory and open files
    "ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271 process_madvise:440",
    "process_mrelease:448 pidfd_getfd:438 kcmp:312:272 perf_event_open:298:241 userfaultfd:323:282",
    "move_pages:279:239 migrate_pages:256:238",
    # modes, owners, attributes and times of files, also of those that cannot be opened
    "chmod:90: fchmod:91:52 fchmodat:268:53 fchmodat2:452 chown:92: fchown:93:55 lchown:94: fchownat:260:54",
    "setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7 setxattrat:463 removexattr:197:14 lremovexattr:198:15",
    "fremovexattr:199:16 removexattrat:466 file_setattr:469 utime:132: utimes:235: futimesat:261:",
    "utimensat:280:88 mknod:133: mknodat:259:33",
    # links, which whoever looks into a folder of the engine would follow
    "link:86: linkat:265:37 symlink:88: symlinkat:266:36",
    # watching files of others, and opening them without a path
    "inotify_init:253: inotify_init1:294:26 inotify_add_watch:254:27 fanotify_init:300:262",
    "fanotify_mark:301:263 open_by_handle_at:304:265 lookup_dcookie:212:18",
    # other views of the machine
    "mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 open_tree:428 open_tree_attr:467",
    "move_mount:429 fsopen:430 fsconfig:431 fsmount:432 fspick:433 mount_setattr:442 statmount:457",
    "listmount:458 setns:308:268 unshare:272:97",
    # keys, and memory and messages that all processes of a user share
    "add_key:248:217 request_key:249:218 keyctl:250:219 shmget:29:194 shmat:30:196 shmctl:31:195",
    "msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 semget:64:190 semop:65:193 semctl:66:191",
    "semtimedop:220:192 mq_open:240:180 mq_unlink:241:181",
    # the machine itself; io_uring, because it does what a filter does not see
    "bpf:321:280 io_uring_setup:425 io_uring_enter:426 io_uring_register:427 init_module:175:105",
    "finit_module:313:273 delete_module:176:106 kexec_load:246:104 kexec_file_load:320:294 reboot:169:142",
    "swapon:167:224 swapoff:168:225 acct:163:89 quotactl:179:60 quotactl_fd:443 syslog:103:116",
    "settimeofday:164:170 clock_settime:227:112 clock_adjtime:305:266 adjtimex:159:171 sethostname:170:161",
    "setdomainname:171:162 personality:135:92 vhangup:153:58 iopl:172: ioperm:173: modify_ldt:154:",
    "uselib:134: lsm_set_self_attr:460",
)
# These are judged by their arguments, or not there.
JUDGED = _numbers(
    "clone:56:220 clone3:435 ioctl:16:29 ioprio_set:251:30 open:2: openat:257:56 openat2:437",
    "prlimit64:302:261 sched_setaffinity:203:122 sched_setattr:314:274 sched_setparam:142:118",
    "sched_setscheduler:144:119 sendmmsg:307:269 sendmsg:46:211 sendto:44:206 setpriority:141:140",
    "setsockopt:54:208 socket:41:198 socketpair:53:199 truncate:76:45",
)


def this_machine() -> str:
    """The machine that this program was built for; empty if we do not know its system calls."""
    machine = os.uname().machine
    return machine if machine in MACHINES and sys.maxsize > 2**32 else ""
