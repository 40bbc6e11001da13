// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/cmd/agent"
)

var update = flag.Bool("update", false, "write the agent's flags into the schema of the chart")

const chartSchema = "../../deploy/helm/sluice/values.schema.json"

// chartPatterns are of flags from which the chart makes more than an argument: paths
// of the node that it mounts, and ports for probes and for Prometheus.
var chartPatterns = map[string]string{
	"bpffs":          `^/.+$`,
	"state-dir":      `^/.+$`,
	"procfs":         `^/.+$`,
	"cni-conf-dir":   `^/.+$`,
	"cni-bin-dir":    `^/.+$`,
	"socket":         `^(/.+/.+)?$`,
	"api-listen":     `^(.*:[1-9][0-9]{0,4})?$`,
	"metrics-listen": `^(.*:[1-9][0-9]{0,4})?$`,
}

// The schema of the chart's values has exactly the flags that the agent has.
func TestChartFlags(t *testing.T) {
	text, err := os.ReadFile(chartSchema)
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(text, &schema))
	flags := schema["properties"].(map[string]any)["flags"].(map[string]any)
	flags["properties"] = flagProperties()

	var want strings.Builder
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	require.NoError(t, encoder.Encode(schema))
	if *update {
		require.NoError(t, os.WriteFile(chartSchema, []byte(want.String()), 0o644))
		return
	}
	require.Equal(t, want.String(), string(text), "make manifests writes it")
}

// The agent takes the arguments that it is deployed with.
func TestDeployedArguments(t *testing.T) {
	text, err := os.ReadFile("../../deploy/daemonset.yaml")
	require.NoError(t, err)
	var daemonSet appsv1.DaemonSet
	require.NoError(t, yaml.UnmarshalStrict(text, &daemonSet))
	args := daemonSet.Spec.Template.Spec.Containers[0].Args
	require.NotEmpty(t, args)
	require.NoError(t, newAgentCommand().ParseFlags(args))
}

// flagProperties describes the flags of the agent as JSON Schema does.
func flagProperties() map[string]any {
	properties := map[string]any{}
	newAgentCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		property := flagType(f)
		property["description"] = f.Usage
		if pattern := chartPatterns[f.Name]; pattern != "" {
			property["pattern"] = pattern
		}
		properties[f.Name] = property
	})
	return properties
}

func flagType(f *pflag.Flag) map[string]any {
	if enum, ok := f.Value.(*agent.Enum); ok {
		return map[string]any{"type": "string", "enum": strings.Split(enum.Type(), "|")}
	}
	switch f.Value.Type() {
	case "bool":
		return map[string]any{"type": "boolean"}
	case "int":
		return map[string]any{"type": "integer"}
	case "uint16":
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 1<<16 - 1}
	case "uint32":
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 1<<32 - 1}
	case "duration":
		return map[string]any{"type": "string", "pattern": `^(0|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+)$`}
	case "stringSlice", "strings":
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
	default:
		return map[string]any{"type": "string"}
	}
}
