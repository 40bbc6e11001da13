// SPDX-License-Identifier: Apache-2.0

// Package objects turns Kubernetes objects into rows of the base tables. The
// JSON of one object comes in, from the API or from a file, or its protobuf from
// the API, and the rows that it stands for go out; a [Store] then puts them into
// their table.
//
// An object that is wrong in part is a row without that part, which names the
// field and the reason in its errors. No former version of it stays in force.
package objects
