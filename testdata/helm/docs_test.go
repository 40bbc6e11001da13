// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/cli/values"
)

var (
	helmCommand = regexp.MustCompile(`(?m)^    helm (install|upgrade) .*$`)
	setArgument = regexp.MustCompile(`--set '?([^\s']+)`)
)

// What documents say to install is what the chart takes, in a namespace that lets the
// pods in, as Helm makes none that does.
func TestDocumentedCommands(t *testing.T) {
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	for _, path := range []string{"../docs/quick-start.md", "../README.md", "helm/sluice/README.md"} {
		text := string(readFile(t, filepath.Join(deployDir, path)))
		commands := helmCommand.FindAllString(text, -1)
		require.NotEmpty(t, commands, path)
		for _, command := range commands {
			var options values.Options
			for _, set := range setArgument.FindAllStringSubmatch(command, -1) {
				options.Values = append(options.Values, set[1])
			}
			merged, err := options.MergeValues(nil)
			require.NoError(t, err, command)
			_, err = render(c, merged, kubeVersion)
			require.NoError(t, err, command)
			require.NotContains(t, command, "--create-namespace")
		}
		before, _, _ := strings.Cut(text, commands[0])
		require.Contains(t, before,
			"kubectl label namespace "+namespace+" pod-security.kubernetes.io/enforce=privileged", path)
	}
}
