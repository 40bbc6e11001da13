// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// What the rows of tables/core share with those here, until they are here too.

// OrDash is how an empty text is shown in a column.
func OrDash(s string) string { return orDash(s) }

// ListColumn shows a list in a column.
func ListColumn(items []string, separator string) string { return listColumn(items, separator) }

// DigestKey is the index key of a digest.
func DigestKey(d bpf.Digest) index.Key { return digestKey(d) }

// DigestFromString parses a digest to its index key.
func DigestFromString(s string) (index.Key, error) { return digestFromString(s) }

// PrefixKey is a short index key of a prefix.
func PrefixKey(p netip.Prefix) index.Key { return prefixKey(p) }

// PrefixKeyFromString parses a prefix to its index key.
func PrefixKeyFromString(s string) (index.Key, error) { return prefixKeyFromString(s) }

// PolicyKeyFromString parses the identity of a policy, or what it begins with, to its index
// key.
func PolicyKeyFromString(s string) (index.Key, error) { return policyKeyFromString(s) }
