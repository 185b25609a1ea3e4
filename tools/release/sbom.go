package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
)

// object is a part of an SPDX 2.3 document.
type object = map[string]any

var notID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// billOfMaterials lists the content of an image as SPDX: the modules that the linker recorded in
// its programs, and the Debian packages of the base.
func billOfMaterials(l *linker, name, arch string, debs []debian) ([]byte, error) {
	parts := map[string]object{} // By purl: the programs have modules in common.
	part := func(name, version, purl string) object {
		parts[purl] = object{
			"SPDXID": "SPDXRef-" + notID.ReplaceAllString(name+"-"+version, "-"), "name": name, "versionInfo": version,
			"downloadLocation": "NOASSERTION", "filesAnalyzed": false,
			"externalRefs": []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}},
		}
		return parts[purl]
	}
	checksum := func(sha256 string) []object { return []object{{"algorithm": "SHA256", "checksumValue": sha256}} }
	for _, program := range withHook([]string{name}) {
		info, err := buildinfo.ReadFile(l.program(arch, program))
		if err != nil {
			return nil, fmt.Errorf("modules of %s: %w", program, err)
		}
		part("go", info.GoVersion, "pkg:golang/stdlib@"+info.GoVersion)
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			part(m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version)
		}
	}
	for _, d := range debs {
		part(d.name, d.version, "pkg:deb/debian/"+d.name+"@"+d.version+"?arch="+arch)["checksums"] = checksum(d.sha256)
	}
	content, err := os.ReadFile(l.program(arch, name))
	if err != nil {
		return nil, err
	}
	top := "SPDXRef-" + name
	packages := []object{{
		"SPDXID": top, "name": name, "versionInfo": l.version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
		"checksums": checksum(digest(content)),
	}}
	relationships := []object{{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": top}}
	for _, purl := range slices.Sorted(maps.Keys(parts)) {
		packages = append(packages, parts[purl])
		relationships = append(relationships,
			object{"spdxElementId": top, "relationshipType": "CONTAINS", "relatedSpdxElement": parts[purl]["SPDXID"]})
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	err = e.Encode(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name + "-" + l.version + "-" + arch,
		"documentNamespace": "https://github.com/heddle-dev/heddle/sbom/" + name + "/" + arch + "/" + digest(content),
		"creationInfo":      object{"created": epoch.Format("2006-01-02T15:04:05Z"), "creators": []string{"Tool: heddle-images"}},
		"packages":          packages, "relationships": relationships,
	})
	return out.Bytes(), err
}
