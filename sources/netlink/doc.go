// SPDX-License-Identifier: Apache-2.0

// Package netlink keeps the tables of devices, node addresses, routes,
// neighbours and bridge entries equal to what the kernel says of one network
// namespace.
//
//	kernel ──► subscription ──► events ─┐
//	   ▲                                ├──► one transaction ──► tables
//	   └── list what is stale ──► listing
//
// Many changes are announced in full and become rows as they are. Some are not:
// the kernel drops routes silently when a device goes down or an address goes
// away, and does not say where in a device's listing an address is. Such an
// event makes a kind of row stale, and the kind is listed again at once. So is
// everything when the subscription breaks or overflows, and every few minutes
// in case something was missed. A listing writes only what differs. What nothing
// announces waits for that: an alternative name given to a device that is down,
// or a queue that a device gets besides those that it has.
//
// Reading netlink needs no privileges.
package netlink
