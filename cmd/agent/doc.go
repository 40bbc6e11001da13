// SPDX-License-Identifier: Apache-2.0

// Package agent puts the agent together from its modules, with what all of them
// share: configuration, logging, health, metrics and the lock that keeps a
// second agent off the node. The modules are listed in cells.go.
package agent
