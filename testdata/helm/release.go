// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

// written is when all files of an archive were, so that what is the same has the same
// checksum.
var written = time.Unix(0, 0).UTC()

// writeRelease writes the chart of a version as Helm names it, the plain manifests as
// sluice-VERSION.yaml, and the definitions, which outlive them, as
// sluice-crds-VERSION.yaml.
func writeRelease(deploy, version, dir string) error {
	c, err := loadChart(deploy)
	if err != nil {
		return err
	}
	stamp(c, version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if _, err := chartutil.Save(c, dir); err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	rendered, err := manifests(c, deploy)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for folder, name := range map[string]string{"": "sluice-", "crds": "sluice-crds-"} {
		text, err := joined(rendered, deploy, folder)
		if err != nil {
			return err
		}
		files[name+version+".yaml"] = text
	}
	return writeFiles(dir, files)
}

var semantic = regexp.MustCompile(`^v?(\d+\.\d+\.\d+(?:[-+].+)?)$`)

// stamp gives the chart the version of a release. One that is no semantic version, as
// that of a commit without a tag before it, becomes a pre-release of the chart.
func stamp(c *chart.Chart, version string) {
	c.Metadata.AppVersion = version
	if m := semantic.FindStringSubmatch(version); m != nil {
		c.Metadata.Version = m[1]
	} else {
		c.Metadata.Version = "0.0.0-g" + version
	}
	c.ModTime, c.SchemaModTime = written, written
	for _, files := range [][]*common.File{c.Raw, c.Templates, c.Files} {
		for _, f := range files {
			f.ModTime = written
		}
	}
}

// joined returns all that kubectl apply -k applies of a folder of deploy/ in one text.
func joined(rendered map[string][]byte, deploy, folder string) ([]byte, error) {
	kustomization, err := readYAML(filepath.Join(deploy, folder, "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	var documents [][]byte
	for _, resource := range kustomization["resources"].([]any) {
		path := filepath.Join(folder, resource.(string))
		text, found := rendered[path]
		if !found {
			if text, err = os.ReadFile(filepath.Join(deploy, path)); err != nil {
				return nil, fmt.Errorf("read manifest: %w", err)
			}
		}
		documents = append(documents, text)
	}
	return bytes.Join(documents, []byte("---\n")), nil
}
