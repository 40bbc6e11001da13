// SPDX-License-Identifier: Apache-2.0

// Package natmap has the layouts of the maps of translations.
//
// A translated connection has two entries. Out, whose key is the tuple of the
// pod's packets, says which source they leave with; In, whose key is the tuple of
// the replies, says which destination those get. To insert In is to take the port.
// The programs write them (bpf/programs/nat.h).
package natmap

// Names of the maps.
const (
	Name4 = "sluice_nat4"
	Name6 = "sluice_nat6"
)
