// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/tables"
)

// Values of [Config.Source].
const (
	SourceKubernetes = "kubernetes" // the API server
	SourceFiles      = "files"      // a directory of manifests
)

// Values of [Config.EndpointSource].
const (
	EndpointsKubernetes = "kubernetes" // Pods
	EndpointsCilium     = "cilium"     // CiliumEndpoints, CiliumEndpointSlices and CiliumIdentities
)

// Config says where objects are read from, and which.
type Config struct {
	Source         string
	EndpointSource string
	ObjectStatus   bool
	EgressIPs      bool
	EgressBGP      bool
}

// DefaultConfig reads manifests, and takes endpoints from Pods.
var DefaultConfig = Config{
	Source: SourceFiles, EndpointSource: EndpointsKubernetes, ObjectStatus: true,
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("source", c.Source, "where objects are read from: kubernetes or files")
	flags.String(
		"endpoint-source", c.EndpointSource,
		"what endpoints are made from: kubernetes (Pods) or cilium (CiliumEndpoints and identities)",
	)
	flags.Bool("object-status", c.ObjectStatus,
		"report the status of policies in the NodeReport of this node, from which the operator "+
			"makes conditions and Events; needs --source=kubernetes")
	flags.Bool("egress-ips", c.EgressIPs,
		"Move the egress addresses of EgressIPPools between nodes; needs --source=kubernetes, "+
			"probes of gateways, and keys of the overlay")
	flags.Bool("egress-bgp", c.EgressBGP,
		"Announce the egress addresses that move to the routers of EgressBGPPeers; needs --egress-ips")
}

// MovesEgressIPs says whether egress addresses of pools move: pools and voters are objects.
func (c Config) MovesEgressIPs() tables.EgressIPs {
	return tables.EgressIPs{Enabled: c.EgressIPs && c.Source == SourceKubernetes}
}

// AnnouncesByBGP says whether egress addresses that move are announced to routers.
func (c Config) AnnouncesByBGP() tables.EgressBGP {
	return tables.EgressBGP{Enabled: c.EgressBGP && c.MovesEgressIPs().Enabled}
}

// OperatorConfig says what the operator does with what it reads.
type OperatorConfig struct{ ObjectStatus, EgressIPs bool }

// Flags implements [cell.Flagger].
func (c OperatorConfig) Flags(flags *pflag.FlagSet) {
	flags.Bool("object-status", c.ObjectStatus,
		"write the status of policies, as agents report it, to conditions and Events of their objects")
	flags.Bool("egress-ips", c.EgressIPs,
		"give nodes blocks of ports, and policies addresses, of EgressIPPools, in the status of "+
			"these, and choose the nodes that vote on such addresses")
}

// Objects says where the operator reads from: always an API server.
func (c OperatorConfig) Objects() Config {
	return Config{
		Source: SourceKubernetes, EndpointSource: EndpointsKubernetes, ObjectStatus: c.ObjectStatus,
		EgressIPs: c.EgressIPs,
	}
}

// Reporting says whether the agent reports the status of policies.
func (c Config) Reporting() tables.Reporting {
	return tables.Reporting{Enabled: c.ObjectStatus && c.Source == SourceKubernetes}
}

// Validate returns an error that names the valid values if one is not.
func (c Config) Validate() error {
	for _, f := range []struct {
		flag, value string
		valid       []string
	}{
		{"source", c.Source, []string{SourceKubernetes, SourceFiles}},
		{"endpoint-source", c.EndpointSource, []string{EndpointsKubernetes, EndpointsCilium}},
	} {
		if !slices.Contains(f.valid, f.value) {
			return fmt.Errorf(
				"flag --%s: unknown value %q, valid are: %s", f.flag, f.value, strings.Join(f.valid, ", "),
			)
		}
	}
	if c.EgressBGP && !c.EgressIPs {
		return errors.New("flag --egress-bgp: needs --egress-ips")
	}
	return nil
}
