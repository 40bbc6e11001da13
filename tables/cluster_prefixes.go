// SPDX-License-Identifier: Apache-2.0

package tables

import "net/netip"

// ClusterPrefixes are prefixes inside the cluster by configuration, whether or not an object names
// them; masked.
type ClusterPrefixes []netip.Prefix
