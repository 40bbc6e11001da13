// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// Object is a Kubernetes object, as its manifest says.
type Object map[string]any

// objectID tells objects apart.
type objectID struct{ kind, namespace, name string }

func (o Object) id() objectID {
	metadata, _ := o["metadata"].(map[string]any)
	text := func(m map[string]any, key string) string { s, _ := m[key].(string); return s }
	return objectID{text(o, "kind"), text(metadata, "namespace"), text(metadata, "name")}
}

// file is the name of the manifest of an object.
func (id objectID) file() string {
	parts := []string{strings.ToLower(id.kind), id.namespace, id.name}
	if id.namespace == "" {
		parts = []string{parts[0], id.name}
	}
	return strings.Join(parts, "_") + ".yaml"
}

// ParseObjects parses manifests.
func ParseObjects(text string) (objects []Object, err error) {
	dec := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		var o map[string]any
		if err := dec.Decode(&o); errors.Is(err, io.EOF) && len(objects) > 0 {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("parse manifests: %w", err)
		}
		if o != nil {
			objects = append(objects, o)
		}
	}
}

// ApplyYAML makes objects be as manifests say.
func (c *Cluster) ApplyYAML(text string) error {
	objects, err := ParseObjects(text)
	if err != nil {
		return err
	}
	return c.Apply(objects...)
}

// Apply makes objects be as given. The agents learn of each as a whole.
func (c *Cluster) Apply(objects ...Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range objects {
		id := o.id()
		if id.kind == "" || id.name == "" {
			return errors.New("apply object: it has no kind or no name")
		}
		text, err := sigsyaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", id.kind, id.name, err)
		}
		if bytes.Equal(text, c.objects[id]) {
			continue
		}
		if err := replaceFile(filepath.Join(c.ManifestDir(), id.file()), text); err != nil {
			return fmt.Errorf("apply %s %s: %w", id.kind, id.name, err)
		}
		c.objects[id] = text
		if c.follow != nil {
			c.follow.put(o)
		}
	}
	return nil
}

// replaceFile writes a file so that others see it whole or not at all.
func replaceFile(path string, data []byte) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// Delete deletes objects; of each only kind and name count. It is no error that
// one does not exist.
func (c *Cluster) Delete(objects ...Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range objects {
		id := o.id()
		if err := os.Remove(filepath.Join(c.ManifestDir(), id.file())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete %s %s: %w", id.kind, id.name, err)
		}
		delete(c.objects, id)
		if c.follow != nil {
			c.follow.remove(id)
		}
	}
	return nil
}

// Policy names an egress policy, to delete it.
func Policy(name string) Object {
	return Object{"apiVersion": "cilium.io/v2", "kind": "CiliumEgressGatewayPolicy", "metadata": map[string]any{"name": name}}
}
