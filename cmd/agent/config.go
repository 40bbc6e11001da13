// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/tables"
)

// configCell has the flags that concern the whole agent.
var configCell = cell.Group(
	cell.Config(DefaultConfig),
	cell.Provide(localNode),
)

// Config has the flags that concern the whole agent.
type Config struct {
	NodeName  string
	StateDir  string
	LogLevel  string
	LogFormat string
}

// DefaultConfig is the configuration without flags. An empty NodeName stands
// for the environment's NODE_NAME, or else the host name.
var DefaultConfig = Config{
	StateDir:  "/var/lib/sluice",
	LogLevel:  "info",
	LogFormat: formatText,
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("node-name", c.NodeName, "name of the Kubernetes node (default: $NODE_NAME, or else the host name)")
	flags.String("state-dir", c.StateDir, "directory for what must outlive the agent")
	flags.Var(newEnum(c.LogLevel, "debug", "info", "warn", "error"), "log-level", "least level of messages that are logged")
	flags.Var(newEnum(c.LogFormat, formatText, formatJSON), "log-format", "format of the log")
}

func localNode(c Config) (tables.LocalNode, error) {
	name := c.NodeName
	if name == "" {
		name = os.Getenv("NODE_NAME")
	}
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return tables.LocalNode{}, fmt.Errorf("find the name of the node: %w: --node-name sets it", err)
		}
	}
	if name == "" {
		return tables.LocalNode{}, errors.New("the node has no name: --node-name sets it")
	}
	return tables.LocalNode{Name: name}, nil
}
