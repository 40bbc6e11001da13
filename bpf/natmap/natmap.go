// SPDX-License-Identifier: Apache-2.0

package natmap

// Names of the maps.
const (
	Name4 = "sluice_nat4"
	Name6 = "sluice_nat6"
)
