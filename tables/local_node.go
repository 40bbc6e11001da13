// SPDX-License-Identifier: Apache-2.0

package tables

// LocalNode is the node that the agent runs on.
type LocalNode struct{ Name string }

// StateDir is the directory on the node for what must outlive the agent, such
// as the former values of kernel parameters. It exists when modules start.
type StateDir string
