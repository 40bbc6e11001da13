// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

const (
	// defaultNamespace is that of deploy/.
	defaultNamespace = "sluice-system"
	// namespaceFile has the namespace of the pod around the agent.
	namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// Connection is how to reach the API server for what the agent writes there.
type Connection struct {
	Config    *rest.Config
	Namespace string // the agent's own
}

// newConnection returns nil if the agent writes nothing: neither policy status nor
// addresses of pods, nor leases of egress addresses.
func newConnection(cfg Config, source objects.Config, plugin tables.CNIPlugin, namespace tables.AgentNamespace) (*Connection, error) {
	if source.Source != objects.SourceKubernetes || !source.ObjectStatus && !plugin.Enabled &&
		!source.MovesEgressIPs().Enabled {
		return nil, nil
	}
	config, err := loadConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent
	config.QPS = -1 // who writes bounds it, for each purpose
	return &Connection{Config: config, Namespace: string(namespace)}, nil
}

// agentNamespace returns the namespace of the agent's pod, or that which the
// kubeconfig names.
func (c Config) agentNamespace() tables.AgentNamespace {
	return tables.AgentNamespace(namespace(c.Kubeconfig))
}

func namespace(kubeconfig string) string {
	if kubeconfig == "" {
		text, err := os.ReadFile(namespaceFile)
		if err != nil {
			return defaultNamespace
		}
		return cmp.Or(strings.TrimSpace(string(text)), defaultNamespace)
	}
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil || config.Contexts[config.CurrentContext] == nil {
		return defaultNamespace
	}
	return cmp.Or(config.Contexts[config.CurrentContext].Namespace, defaultNamespace)
}
