// SPDX-License-Identifier: Apache-2.0

// Package natmap has the maps of translations, which the programs write
// (bpf/programs/nat.h).
//
// A translated connection has two entries. Out, whose key is the tuple of the
// pod's packets, says which source they leave with; In, whose key is the tuple of
// the replies, says which destination those get. To insert In is to take the port.
//
// In go tuples of packets, and clock readings to which times are relative; out
// come entries, counts, and records that people and programs read. Maps, tuples and
// filters are those of package ctmap, whose documentation also says which names of
// Cilium's package nat have which counterpart.
//
// # Layouts
//
// Both maps are BPF_MAP_TYPE_LRU_HASH without flags. Order is the byte order of
// the field: network is big-endian, host that of the CPU. Times are of
// CLOCK_MONOTONIC. A test holds this table to the structs, and another one the
// structs to those of the programs.
//
// Key4, 14 bytes, of sluice_nat4: the plain tuple of a packet, other than in maps of
// connections.
//
//	offset size order   field
//	     0    4 network DestAddr          of the packet
//	     4    4 network SourceAddr        of the packet
//	     8    2 network DestPort          of the packet; identifier of an ICMP echo's answer
//	    10    2 network SourcePort        of the packet; identifier of an ICMP echo's question
//	    12    1 -       Protocol          number of the IP header
//	    13    1 -       Flags             ctmap.TupleFlags: 0 packets of the pod, 1 replies
//
// Key6, 38 bytes, of sluice_nat6.
//
//	offset size order   field
//	     0   16 network DestAddr          of the packet
//	    16   16 network SourceAddr        of the packet
//	    32    2 network DestPort          of the packet
//	    34    2 network SourcePort        of the packet
//	    36    1 -       Protocol          number of the IP header
//	    37    1 -       Flags             ctmap.TupleFlags
//
// Entry4, 40 bytes, of sluice_nat4. Offsets are Cilium's.
//
//	offset size order   field
//	     0    8 host    Created           nanoseconds: when it was made; never changes
//	     8    4 host    NeedsCT           1: goes with its entry in the maps of connections
//	    12    4 host    Used              seconds: when it last translated a packet of the pod, coarse; 0: condemned, as good as absent
//	    16   16 network Tunnel            IPv6 or IPv4-mapped address of the node of the pod; zero: it is here
//	    32    4 network Addr              that the source (replies: the destination) becomes
//	    36    2 network Port              that goes with it
//	    38    2 host    Counter           of its traffic in sluice_trafhits; 0: it is not counted
//
// Entry6, 56 bytes, of sluice_nat6.
//
//	offset size order   field
//	     0    8 host    Created           nanoseconds: when it was made; never changes
//	     8    4 host    NeedsCT           1: goes with its entry in the maps of connections
//	    12    4 host    Used              seconds: when it last translated a packet of the pod, coarse; 0: condemned, as good as absent
//	    16   16 network Tunnel            IPv6 or IPv4-mapped address of the node of the pod; zero: it is here
//	    32   16 network Addr              that the source (replies: the destination) becomes
//	    48    2 network Port              that goes with it
//	    50    2 host    Counter           of its traffic in sluice_trafhits; 0: it is not counted
//	    52    4 -       Pad               0
package natmap
