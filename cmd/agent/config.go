// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sluice-net/sluice/sources/probes"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/members"
)

// configCell has the flags that concern the whole agent.
var configCell = cell.Group(cell.Config(DefaultConfig), cell.Provide(localNode))

// Config has the flags that concern the whole agent.
type Config struct {
	NodeName string
	StateDir string
}

// DefaultConfig is the configuration without flags. An empty NodeName stands
// for the environment's NODE_NAME, or else the host name.
var DefaultConfig = Config{StateDir: "/var/lib/sluice"}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String(
		"node-name", c.NodeName,
		"name of the Kubernetes node (default: $NODE_NAME, or else the host name)",
	)
	flags.String("state-dir", c.StateDir, "directory for what must outlive the agent")
}

// LogConfig says what is logged, and how.
type LogConfig struct {
	LogLevel  string
	LogFormat string
}

// DefaultLogConfig is the configuration without flags.
var DefaultLogConfig = LogConfig{LogLevel: "info", LogFormat: formatText}

// Flags implements [cell.Flagger].
func (c LogConfig) Flags(flags *pflag.FlagSet) {
	flags.Var(
		NewEnum(c.LogLevel, "debug", "info", "warn", "error"), "log-level",
		"least level of messages that are logged",
	)
	flags.Var(NewEnum(c.LogFormat, formatText, formatJSON), "log-format", "format of the log")
}

func localNode(c Config) (tables.LocalNode, error) {
	name := cmp.Or(c.NodeName, os.Getenv("NODE_NAME"))
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return tables.LocalNode{}, fmt.Errorf("find the name of the node: %w: --node-name sets it", err)
		}
		name = strings.ToLower(host) // as the kubelet does
	}
	if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
		return tables.LocalNode{}, fmt.Errorf(
			"%q is no name of a node, --node-name sets it: %s", name, reasons[0],
		)
	}
	return tables.LocalNode{Name: name}, nil
}

// checkClusterCIDRs refuses what would turn egress gateways off: destinations
// inside the cluster are never redirected.
func checkClusterCIDRs(c members.Config) error {
	for _, text := range c.ClusterCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() == 0 {
			return fmt.Errorf("--cluster-cidrs %s: all addresses would be inside the cluster, and nothing ever redirected to an egress gateway", text)
		}
	}
	return nil
}

// checkEgressIPs refuses egress addresses that move without probes: nodes vote for nodes that they
// probe.
func checkEgressIPs(e tables.EgressIPs, c probes.Config) error {
	if e.Enabled && c.GatewayProbeInterval == 0 {
		return errors.New("flag --egress-ips: nodes vote by what they probe, but " +
			"--gateway-probe-interval is 0: give it an interval, such as 75ms, or leave it out")
	}
	return nil
}
