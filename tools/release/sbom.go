package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
)

// The fields of an SPDX 2.3 document that are used here.
type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	ID                string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []spdxPackage  `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string     `json:"SPDXID"`
	Name             string     `json:"name"`
	Version          string     `json:"versionInfo"`
	DownloadLocation string     `json:"downloadLocation"`
	FilesAnalyzed    bool       `json:"filesAnalyzed"`
	Checksums        []checksum `json:"checksums,omitempty"`
	ExternalRefs     []external `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

var notID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// billOfMaterials lists what is in an image: the modules that the linker put
// into its program and into others beside it, and the Debian packages of the base.
func billOfMaterials(name, version, arch, program string, others []string, pins []pin) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("modules of %s: %w", name, err)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	top := spdxPackage{
		ID: "SPDXRef-" + name, Name: name, Version: version, DownloadLocation: "NOASSERTION",
		Checksums: []checksum{{"SHA256", hex.EncodeToString(sum[:])}},
	}
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name + "-" + version + "-" + arch,
		DocumentNamespace: "https://github.com/heddle-dev/heddle/sbom/" + name + "/" + arch + "/" + hex.EncodeToString(sum[:]),
		CreationInfo:      creation{Created: epoch.Format("2006-01-02T15:04:05Z"), Creators: []string{"Tool: heddle-images"}},
		Packages:          []spdxPackage{top},
		Relationships:     []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", top.ID}},
	}
	add := func(p spdxPackage) {
		p.ID, p.DownloadLocation = "SPDXRef-"+notID.ReplaceAllString(p.Name+"-"+p.Version, "-"), "NOASSERTION"
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, relationship{top.ID, "CONTAINS", p.ID})
	}
	add(spdxPackage{Name: "go", Version: info.GoVersion, ExternalRefs: []external{{"PACKAGE-MANAGER", "purl", "pkg:golang/stdlib@" + info.GoVersion}}})
	deps := info.Deps
	for _, other := range others {
		more, err := buildinfo.ReadFile(other)
		if err != nil {
			return nil, fmt.Errorf("modules of %s: %w", filepath.Base(other), err)
		}
		for _, m := range more.Deps {
			if !slices.ContainsFunc(deps, func(have *debug.Module) bool { return have.Path == m.Path }) {
				deps = append(deps, m)
			}
		}
	}
	for _, m := range deps {
		if m.Replace != nil {
			m = m.Replace
		}
		add(spdxPackage{Name: m.Path, Version: m.Version, ExternalRefs: []external{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}}})
	}
	for _, p := range pins {
		if p.arch == arch {
			add(spdxPackage{
				Name: p.name, Version: p.version, Checksums: []checksum{{"SHA256", p.sha256}},
				ExternalRefs: []external{{"PACKAGE-MANAGER", "purl", "pkg:deb/debian/" + p.name + "@" + p.version + "?arch=" + arch}},
			})
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	if err := e.Encode(d); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
