// SPDX-License-Identifier: Apache-2.0

//go:build race

package bgp

// GoBGP has variables of the package that each server writes when it starts. A process of Sluice
// has one server; these tests have several.
func init() { raceDetector = true }
