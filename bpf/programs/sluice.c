//go:build ignore

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The programs. Each is the way of a packet at one hook:
 *
 *	pod.h		from_pod, to_pod
 *	overlay.h	from_overlay
 *	netdev.h	from_netdev, to_netdev
 *	backstop.h	backstop
 *
 * What they share, from the bytes of a frame up:
 *
 *	layout.h, connections.h, event.h, maps.h	what is shared with the agent
 *	packet.h, fragment.h, parse.h	the flow of a packet
 *	skb.h			what the kernel knows of it beside
 *	report.h		counters and events
 *	ct.h, track.h		connection tracking
 *	egress.h		what the tables say
 *	hold.h		addresses of pods that are not known
 *	block.h		egress addresses that move, with their connections
 *	fence.h		egress addresses that move
 *	link.h		ARP, neighbor discovery, and packets to many
 *	traffic.h		counters of translated traffic
 *	limit.h			limits of bandwidth
 *	translation.h, nat.h	translations
 *	ledger.h		which pod has an egress address and port
 *	siphash.h, proof.h	origin of overlay packets
 *	probe.h			probes between nodes
 *	rewrite.h		changing packets
 *	conntrack.h		what the host knows of flows
 *	answer.h		ICMP errors in answer
 *	netfilter.h		packets at netfilter hooks
 *	forward.h		ways out
 *	known.h			flows that a pod has begun
 */

#include "backstop.h"
#include "netdev.h"
#include "overlay.h"
#include "pod.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
