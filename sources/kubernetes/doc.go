// SPDX-License-Identifier: Apache-2.0

// Package kubernetes reflects the objects of an API server to the base tables.
//
//	API server ──list, watch──► cache.Reflector ──events──► one transaction per batch ──► table
//
// Each kind of object has a reflector of its own, and a row in table
// object-sources that says how it goes. None waits for another: a kind that is
// not served, or not allowed, leaves the others alone.
package kubernetes
