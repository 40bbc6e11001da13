// SPDX-License-Identifier: Apache-2.0

// Package percluster has maps of connections and translations for each of the
// clusters that this one is connected with: pods of two clusters may have the
// same address, and the keys have no cluster in them.
//
// In go the numbers of clusters, 1 to [MaxClusterID]; out come sets of six maps,
// which are like the global ones in everything but their size. There is one array
// of maps for each kind (BPF_MAP_TYPE_ARRAY_OF_MAPS), whose index is the number of
// the cluster. The arrays are pinned beside the global maps, under names of 15
// characters, and the maps in them below, under names as those of cluster 7:
//
//	sluice_cct4_tcp  sluice_cct4_any  sluice_cct6_tcp  sluice_cct6_any  sluice_cnat4  sluice_cnat6
//	clusters/cct4_tcp_7  cct4_any_7  cct6_tcp_7  cct6_any_7  cnat4_7  cnat6_7
//
// What is in an array is what holds: programs use it. A pin is only the way to
// open it without CAP_SYS_ADMIN, which the agent does not have, and counts if it is
// of the map with the number that is in the array. The kernel does not give a
// number again while a pin keeps its map. A map that is in an array and not
// pinned, as after the pin was removed, is opened by its number, by processes that may.
//
// Who changes maps holds a lock on the directory of pins; who reads needs none. A
// new map is pinned first under its name with "_new", then put into the array, then
// renamed, and readers try both names; a map is deleted from the array first, then
// its pins. So a map in an array has a pin of its own at every moment, also when
// the process ends between steps. What that can leave is a pin of a map that no
// array has: nothing uses it, it takes memory, and the next [OpenOrCreate], or
// [Maps.Create] or [Maps.Delete] of that cluster, removes it.
//
// What the kernel guarantees, tried on 6.18:
//
//   - Only system calls write an array of maps; programs look up, and get the map
//     or NULL. A program that has looked up a map may use it until it ends, though
//     the map has been replaced or deleted meanwhile. The system call that replaces
//     or deletes returns when no program uses the former map any more (it waits for
//     an RCU grace period, some milliseconds), and the map goes with its last user.
//     So there is no moment when a program has a map that is gone, and what it
//     writes in the last moment to a map that is deleted goes with it.
//   - All maps of an array have the type, key size, value size and flags of the
//     template that it was created with. Their sizes may differ (those of arrays
//     in an array may not, of hash maps they may).
//   - To look up in an array by system call gives the number of a map, as to ask
//     for that of an open map does, and takes no capability. To open a map by its
//     number takes CAP_SYS_ADMIN.
package percluster
