// SPDX-License-Identifier: Apache-2.0

package packettest

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -go-package packettest -type observation -cflags "-O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" observe programs/observe.c
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -go-package packettest -type question -type answer -cflags "-O2 -g -Wall -Wextra -Wno-unused-function -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" judge programs/judge.c
