/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What the programs need of the kernel's headers, and the few names that the
 * headers of Debian's kernel lack. */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* A function that the verifier looks at once, and not for each of its callers.
 * It returns a number, and checks its pointers as any caller could be. What each
 * packet needs is inlined instead: where processors have to be guarded, a call
 * takes as long as a lookup. */
#define SUBPROGRAM __attribute__((noinline))

/* For packed structs on the stack: without it their fields are written byte by byte. */
#define ALIGNED __attribute__((aligned(8)))

/* Verdicts of programs at tcx (linux/bpf.h of 6.6). */
#define TCX_NEXT -1
#define TCX_DROP 2
#define TCX_REDIRECT 7

/* Verdicts of programs at netfilter hooks (linux/netfilter.h). */
#define NF_DROP 0
#define NF_ACCEPT 1

/* bpf_l4_csum_replace: do not touch skb->csum, as an IPv6 address has no other
 * checksum that would make up for it (linux/bpf.h of 6.16). */
#define CSUM_IPV6 (1ULL << 7)
