// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	chart "helm.sh/helm/v4/pkg/chart/v2"
)

const generatedHeader = `# SPDX-License-Identifier: Apache-2.0
#
# Generated from deploy/helm by make manifests.
`

// ofHelm are labels that say that an object is of a release of Helm, which one that
// is applied by itself is not.
var ofHelm = regexp.MustCompile(`(?m)^ +(helm\.sh/chart|app\.kubernetes\.io/(managed-by|version)): .*\n`)

// generated returns the files below deploy/ that follow from the chart.
func generated(deploy string) (map[string][]byte, error) {
	c, err := loadChart(deploy)
	if err != nil {
		return nil, err
	}
	files, err := manifests(c, deploy)
	if err != nil {
		return nil, err
	}
	readme, err := readmeWithValues(deploy)
	if err != nil {
		return nil, err
	}
	files["helm/sluice/README.md"] = readme
	copies, err := copied(deploy)
	if err != nil {
		return nil, err
	}
	maps.Copy(files, copies)
	return files, nil
}

// chartFiles are what templates read, below files/ of the chart, by where it is below
// deploy/. Copies, as Helm warns of each symbolic link. Of the definitions those that
// the chart can bring.
var chartFiles = map[string]string{
	"files/crds/ciliumcidrgroups.yaml":                 "crds/ciliumcidrgroups.yaml",
	"files/crds/ciliumclusterwidenetworkpolicies.yaml": "crds/ciliumclusterwidenetworkpolicies.yaml",
	"files/crds/ciliumegressgatewaypolicies.yaml":      "crds/ciliumegressgatewaypolicies.yaml",
	"files/crds/ciliumnetworkpolicies.yaml":            "crds/ciliumnetworkpolicies.yaml",
	"files/crds/egressbgppeers.yaml":                   "crds/egressbgppeers.yaml",
	"files/crds/egressippools.yaml":                    "crds/egressippools.yaml",
	"files/crds/nodereports.yaml":                      "crds/nodereports.yaml",
	"files/dashboard.json":                             "monitoring/dashboard.json",
	"files/rules.yaml":                                 "monitoring/rules.yaml",
}

// copied returns the files of the chart that are copies of others.
func copied(deploy string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for to, from := range chartFiles {
		text, err := os.ReadFile(filepath.Join(deploy, from))
		if err != nil {
			return nil, fmt.Errorf("copy to the chart: %w", err)
		}
		files[filepath.Join("helm/sluice", to)] = text
	}
	return files, nil
}

// manifests renders the chart with deploy/helm/manifests.yaml, a file a template.
func manifests(c *chart.Chart, deploy string) (map[string][]byte, error) {
	values, err := readYAML(filepath.Join(deploy, "helm/manifests.yaml"))
	if err != nil {
		return nil, err
	}
	rendered, err := render(c, values, kubeVersion)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for path, text := range rendered {
		if path != "NOTES.txt" {
			files[path] = []byte(plain(text))
		}
	}
	// What comes before the manifests are deleted.
	values["cleanup"] = map[string]any{"enabled": true}
	if rendered, err = render(c, values, kubeVersion); err != nil {
		return nil, err
	}
	files["cleanup/daemonset.yaml"] = []byte(plain(rendered["daemonset.yaml"]))
	return files, nil
}

// plain makes a manifest of what a template made.
func plain(text string) string {
	text = ofHelm.ReplaceAllString(strings.TrimSpace(text)+"\n", "")
	if strings.HasPrefix(text, "#") {
		return generatedHeader + "#\n" + text
	}
	return generatedHeader + text
}
