// SPDX-License-Identifier: Apache-2.0

// Package ctmap has the maps of connections and of fragments, which the programs
// write (bpf/programs/ct.h), and what is common to them and to the maps of
// translations (package natmap).
//
// In go tuples of connections, and clock readings to which times are relative;
// out come entries, counts, and records that people and programs read. The
// garbage collection is package gc, and maps of other clusters are package
// percluster. Which names of Cilium's packages have which counterpart is below.
//
//	Tuple    a connection: client, server, protocol, direction
//	Map      one of the four maps of connections: sluice_ct{4,6}_{tcp,any}
//	Any      one of those or of the two of translations
//	Typed    the generic handle under both: open, create, replace, read, write
//	Record   an entry as people and programs read it, JSON and one line of text
//	Match    which records are wanted
//
// # Layouts
//
// Maps of connections are BPF_MAP_TYPE_LRU_HASH without flags. Structs are packed
// or have no implicit padding: their bytes are what the programs see. Order is the
// byte order of the field: network is big-endian, host that of the CPU. Times are of
// CLOCK_MONOTONIC, in the time namespace that the kernel's programs see (gc.Now).
// A test holds this table to the structs, and another one the structs to those of
// the programs.
//
// Key4, 14 bytes, of sluice_ct4_tcp and sluice_ct4_any. The addresses are named for
// the reply direction, the ports for the original one.
//
//	offset size order   field
//	     0    4 network DestAddr          address of the client
//	     4    4 network SourceAddr        address of the server
//	     8    2 network DestPort          port of the server; 0 if ICMP is asked
//	    10    2 network SourcePort        port of the client; identifier of an ICMP echo
//	    12    1 -       Protocol          number of the IP header
//	    13    1 -       Flags             TupleFlags: 0 out, 1 in, 2 related, 4 service
//
// Key6, 38 bytes, of sluice_ct6_tcp and sluice_ct6_any.
//
//	offset size order   field
//	     0   16 network DestAddr          address of the client
//	    16   16 network SourceAddr        address of the server
//	    32    2 network DestPort          port of the server
//	    34    2 network SourcePort        port of the client
//	    36    1 -       Protocol          number of the IP header
//	    37    1 -       Flags             TupleFlags
//
// Entry, 72 bytes, the value of all four. The first 56 are laid out as Cilium's.
//
//	offset size order   field
//	     0   16 network Gateway           IPv6 or IPv4-mapped address that it is pinned to; zero: none
//	    16    8 host    Packets           in both directions
//	    24    8 host    Bytes             in both directions, with Ethernet headers
//	    32    4 host    Lifetime          seconds: when it expires; 0: condemned, as good as absent
//	    36    2 host    Flags             EntryFlags: bits 0 rx-closing, 1 tx-closing, 4 seen-non-syn, 9 service, 10 from-tunnel, 11 host, 12 local-pod
//	    38    2 network ReverseNATIndex   not used: 0
//	    40    2 host    IfIndex           not used: 0
//	    42    1 -       TxFlagsSeen       TCP flags from the client; other protocols: 1 if there was a packet
//	    43    1 -       RxFlagsSeen       the same towards it
//	    44    4 host    SourceSecurityID  not used: 0
//	    48    4 host    LastTxReport      seconds: when a packet from the client was last noted, coarse
//	    52    4 host    LastRxReport      seconds: the same towards it
//	    56    4 host    Generation        under which the verdict was made; 0: it has to be made
//	    60    4 host    Cookie            of the rule that allowed it
//	    64    4 host    Created           seconds: when it was made, or made anew; 0: not known
//	    68    4 -       Reserved          0
//
// FragKey4, 12 bytes, of sluice_frag4: a datagram in fragments.
//
//	offset size order   field
//	     0    4 network DestAddr          of the datagram
//	     4    4 network SourceAddr        of the datagram
//	     8    2 network ID                of the IP header
//	    10    1 -       Protocol          number of the IP header
//	    11    1 -       Pad               0
//
// FragKey6, 40 bytes, of sluice_frag6.
//
//	offset size order   field
//	     0   16 network DestAddr          of the datagram
//	    16   16 network SourceAddr        of the datagram
//	    32    4 network ID                of the fragment header
//	    36    1 -       Protocol          number of the fragment header
//	    37    3 -       Pad               0
//
// FragValue, 4 bytes, of both.
//
//	offset size order   field
//	     0    2 network SourcePort        of the first fragment
//	     2    2 network DestPort          of the first fragment
package ctmap
