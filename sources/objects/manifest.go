// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// Document is an object in a manifest.
type Document struct {
	Index      int // of the document in the manifest, from 1
	Line       int // on which the document begins, from 1
	APIVersion string
	Kind       string
	JSON       []byte
}

// String says where the document is.
func (d *Document) String() string { return fmt.Sprintf("document %d (line %d)", d.Index, d.Line) }

// ReadManifest returns the objects of a manifest: YAML or JSON, of any number of
// documents. A document of kind List stands for its items. The error names the
// first document that is no object, and the line.
func ReadManifest(data []byte) ([]*Document, error) {
	var out []*Document
	for i, part := range splitDocuments(data) {
		doc := &Document{Index: i + 1, Line: part.line}
		converted, err := yaml.YAMLToJSONStrict(part.text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doc, syntaxError(part))
		}
		if doc.JSON = converted; string(converted) == "null" {
			continue // only comments
		}
		docs, err := doc.expand()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doc, err)
		}
		out = append(out, docs...)
	}
	return out, nil
}

// expand fills in what the document is, and returns the items of a list in its
// place.
func (d *Document) expand() ([]*Document, error) {
	var head struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(d.JSON, &head); err != nil {
		var mismatch *json.UnmarshalTypeError
		if errors.As(err, &mismatch) && mismatch.Field != "" {
			return nil, fmt.Errorf("%s: must not be of type %s", mismatch.Field, mismatch.Value)
		}
		return nil, errors.New("is no object")
	}
	d.APIVersion, d.Kind = head.APIVersion, head.Kind
	switch {
	case d.Kind == "":
		return nil, errors.New("kind: required")
	case d.APIVersion == "":
		return nil, errors.New("apiVersion: required")
	case d.Kind != "List" || d.APIVersion != "v1":
		return []*Document{d}, nil
	}
	var out []*Document
	for i, data := range head.Items {
		item := &Document{Index: d.Index, Line: d.Line, JSON: data}
		docs, err := item.expand()
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		out = append(out, docs...)
	}
	return out, nil
}

type textPart struct {
	line int // from 1
	text []byte
}

// splitDocuments cuts YAML at its document separators.
func splitDocuments(data []byte) []textPart {
	var (
		parts   []textPart
		current = textPart{line: 1}
		line    int
	)
	for text := range bytes.Lines(data) {
		line++
		if !isSeparator(text) {
			current.text = append(current.text, text...)
			continue
		}
		// What precedes the first separator is no document if it is empty.
		if len(parts) > 0 || len(bytes.TrimSpace(current.text)) > 0 {
			parts = append(parts, current)
		}
		// The line of the separator may go on with a comment or with content.
		current = textPart{line: line, text: bytes.Clone(text[len("---"):])}
	}
	return append(parts, current)
}

func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// syntaxError returns what is wrong with a document, with the lines that it
// names being those of the whole manifest: parsed behind as many empty ones.
func syntaxError(part textPart) error {
	_, err := yaml.YAMLToJSONStrict(append(bytes.Repeat([]byte{'\n'}, part.line-1), part.text...))
	return errors.New(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
}
