// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// writeBill writes what a binary is made of, as CycloneDX has it. It is read from the
// binary, so that it has what was linked, not what go.mod names.
func (b builder) writeBill(path, binary string, info *buildinfo.BuildInfo, modules []module) error {
	content, err := os.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("read binary: %w", err)
	}
	var out bytes.Buffer
	encoder := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	if err := encoder.EncodeVersion(b.bill(content, info, modules), cyclonedx.SpecVersion1_6); err != nil {
		return fmt.Errorf("encode bill of materials: %w", err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write bill of materials: %w", err)
	}
	return nil
}

func (b builder) bill(binary []byte, info *buildinfo.BuildInfo, modules []module) *cyclonedx.BOM {
	program := component(cyclonedx.ComponentTypeApplication, module{path: modulePath, version: b.version, licenses: []string{"Apache-2.0"}})
	program.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(binary))}}
	program.Properties = settings(info)

	components := make([]cyclonedx.Component, 0, len(modules))
	parts := make([]string, 0, len(modules))
	for _, m := range modules {
		c := component(cyclonedx.ComponentTypeLibrary, m)
		components = append(components, c)
		parts = append(parts, c.BOMRef)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: b.time.Format(time.RFC3339), Component: &program}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: program.BOMRef, Dependencies: &parts}}
	return bom
}

func component(kind cyclonedx.ComponentType, m module) cyclonedx.Component {
	url := "pkg:golang/" + m.path + "@" + strings.ReplaceAll(m.version, "+", "%2B")
	return cyclonedx.Component{
		BOMRef: url, Type: kind, Name: m.path, Version: m.version, PackageURL: url, Licenses: licenses(m.licenses),
	}
}

// licenses of a component: all hold.
func licenses(ids []string) *cyclonedx.Licenses {
	if len(ids) == 1 {
		return &cyclonedx.Licenses{{License: &cyclonedx.License{ID: ids[0]}}}
	}
	return &cyclonedx.Licenses{{Expression: strings.Join(ids, " AND ")}}
}

// settings tells how a binary was built.
func settings(info *buildinfo.BuildInfo) *[]cyclonedx.Property {
	properties := []cyclonedx.Property{{Name: "go:version", Value: info.GoVersion}}
	for _, s := range info.Settings {
		properties = append(properties, cyclonedx.Property{Name: "go:build:" + s.Key, Value: s.Value})
	}
	return &properties
}
