// SPDX-License-Identifier: Apache-2.0

package gctest

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -go-package gctest -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" gateway programs/gateway.c
