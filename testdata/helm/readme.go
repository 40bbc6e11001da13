// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The table of values is between these lines of the README.
const (
	tableBegin = "<!-- values: written by make manifests -->\n"
	tableEnd   = "<!-- end of values -->\n"
)

// value is a row of the table.
type value struct{ name, fallback, comment string }

// readmeWithValues returns the README of the chart with the table of its values.
func readmeWithValues(deploy string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(deploy, "helm/sluice/values.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read values: %w", err)
	}
	values, err := documentedValues(text)
	if err != nil {
		return nil, err
	}
	readme, err := os.ReadFile(filepath.Join(deploy, "helm/sluice/README.md"))
	if err != nil {
		return nil, fmt.Errorf("read README: %w", err)
	}
	before, rest, found := bytes.Cut(readme, []byte(tableBegin))
	_, after, foundEnd := bytes.Cut(rest, []byte(tableEnd))
	if !found || !foundEnd {
		return nil, errors.New("find the table of values in the README of the chart: its lines are missing")
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(tableBegin)
	out.WriteString("| value | default | |\n|---|---|---|\n")
	for _, v := range values {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", v.name, v.fallback, v.comment)
	}
	out.WriteString(tableEnd)
	out.Write(after)
	return out.Bytes(), nil
}

// documentedValues returns the values of values.yaml with their comments, in its order.
// A mapping whose keys have comments is told key by key, every other value as a whole.
func documentedValues(text []byte) ([]value, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("parse values: %w", err)
	}
	return appendValues(nil, "", document.Content[0])
}

func appendValues(values []value, prefix string, mapping *yaml.Node) ([]value, error) {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		if toldByKey(node) {
			var err error
			if values, err = appendValues(values, name+".", node); err != nil {
				return nil, err
			}
			continue
		}
		comment := strings.TrimPrefix(strings.ReplaceAll(key.HeadComment, "\n# ", " "), "# ")
		if comment == "" {
			return nil, fmt.Errorf("value %s has no comment", name)
		}
		fallback, err := inline(node)
		if err != nil {
			return nil, fmt.Errorf("value %s: %w", name, err)
		}
		values = append(values, value{name, fallback, strings.ReplaceAll(comment, "|", `\|`)})
	}
	return values, nil
}

// toldByKey reports whether a comment is at some key of a mapping, at any depth.
func toldByKey(node *yaml.Node) bool {
	if node.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i < len(node.Content); i += 2 {
		if node.Content[i].HeadComment != "" || toldByKey(node.Content[i+1]) {
			return true
		}
	}
	return false
}

// inline writes a value on one line.
func inline(node *yaml.Node) (string, error) {
	var v any
	if err := node.Decode(&v); err != nil {
		return "", err
	}
	if v == "" {
		return "", nil
	}
	if text, ok := v.(string); ok {
		return "`" + text + "`", nil
	}
	text, err := json.Marshal(v)
	return "`" + string(text) + "`", err
}
