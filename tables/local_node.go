// SPDX-License-Identifier: Apache-2.0

package tables

// LocalNode is the node that the agent runs on.
type LocalNode struct{ Name string }

// AgentNamespace is the namespace that the agents run in.
type AgentNamespace string
