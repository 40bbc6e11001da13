// SPDX-License-Identifier: Apache-2.0

// Package demo has the manifests of a small cluster, which the agent reads when
// it is given no other source.
package demo

import "embed"

// FS has the manifests.
//
//go:embed *.yaml
var FS embed.FS
