// SPDX-License-Identifier: Apache-2.0

// Package packettest makes packets of layers, reads packets back, and loads the
// programs with maps and devices of a test's own. Packets go in as the layers
// that a test names, with right checksums, and come out as fields to compare;
// what the programs left in the maps is read under the names of the layout.
//
// It is for tests and measurements only.
package packettest
