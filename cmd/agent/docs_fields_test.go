// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

var (
	code    = regexp.MustCompile("`[^`\n]*`")
	example = regexp.MustCompile(`\w+:`) // of YAML
	word    = regexp.MustCompile(`\w+`)

	// fieldRows are the rows of a table of fields of a status.
	fieldRows = regexp.MustCompile("(?m)^\\| field of `status`.*\n\\|.*\n((?:\\|.*\n)+)")
)

// The documents name each field of the objects of Sluice, and the tables of fields of
// their status no others.
func TestDocumentedFields(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(repository, "deploy/crds/*s.yaml"))
	require.NoError(t, err)
	fields := map[string]bool{} // whether they are of an object of Sluice
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var crd apiext.CustomResourceDefinition
		require.NoError(t, yaml.Unmarshal(data, &crd), path)
		for _, version := range crd.Spec.Versions {
			addFields(fields, version.Schema.OpenAPIV3Schema, crd.Spec.Group == "sluice.io")
		}
	}
	named := map[string]bool{}
	for name, text := range documents(t) {
		spans := append(code.FindAllString(text, -1), example.FindAllString(text, -1)...)
		for _, span := range spans {
			for _, w := range word.FindAllString(span, -1) {
				named[w] = true
			}
		}
		for _, table := range fieldRows.FindAllStringSubmatch(text, -1) {
			for row := range strings.Lines(table[1]) {
				first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
				for _, span := range code.FindAllString(first, -1) {
					for _, w := range word.FindAllString(span, -1) {
						_, isField := fields[w]
						require.True(t, isField, "%s: %s is a field of no object", name, span)
					}
				}
			}
		}
	}
	for field, own := range fields {
		require.True(t, !own || named[field], "no document names the field %s", field)
	}
}

// addFields adds the fields of a schema, but for what label selectors and conditions have in all
// of Kubernetes: these are of no object of Sluice.
func addFields(fields map[string]bool, schema *apiext.JSONSchemaProps, own bool) {
	if schema == nil {
		return
	}
	if schema.Items != nil {
		addFields(fields, schema.Items.Schema, own)
	}
	for name, s := range schema.Properties {
		isStandard := name == "conditions" || strings.HasPrefix(name, "match")
		fields[name] = fields[name] || own && !isStandard
		addFields(fields, &s, own && !isStandard)
	}
}
