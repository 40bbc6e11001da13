// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const (
	release     = "sluice"
	namespace   = "sluice-system"
	kubeVersion = "v1.36.3" // that templates are rendered for, the one of the end-to-end tests
)

// loadChart reads the chart below deploy/.
func loadChart(deploy string) (*chart.Chart, error) {
	c, err := loader.LoadDir(filepath.Join(deploy, "helm/sluice"))
	if err != nil {
		return nil, fmt.Errorf("load chart: %w", err)
	}
	return c, c.Validate()
}

// readYAML reads a file, such as values for the chart.
func readYAML(path string) (map[string]any, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	var content map[string]any
	if err := yaml.Unmarshal(text, &content); err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	return content, nil
}

// render returns what the templates make of values, by the paths of the templates
// below templates/. A template that makes nothing is left out.
func render(c *chart.Chart, values map[string]any, kubernetes string) (map[string]string, error) {
	version, err := common.ParseKubeVersion(kubernetes)
	if err != nil {
		return nil, fmt.Errorf("parse version of Kubernetes: %w", err)
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, values, options, capabilities)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for path, text := range rendered {
		if strings.TrimSpace(text) != "" {
			files[strings.TrimPrefix(path, c.Name()+"/templates/")] = text
		}
	}
	return files, nil
}
