package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// object is a part of an SPDX 2.3 document.
type object = map[string]any

var notID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// billOfMaterials lists the content of an image as SPDX: the modules that the linker recorded in
// its programs (the first names the image), and the Debian packages of the base.
func billOfMaterials(name, version, arch string, programs []string, pins []pin) ([]byte, error) {
	text, err := os.ReadFile(programs[0])
	if err != nil {
		return nil, err
	}
	sum, top := digest(text), "SPDXRef-"+name
	checksum := func(sha256 string) []object { return []object{{"algorithm": "SHA256", "checksumValue": sha256}} }
	packages := []object{{
		"SPDXID": top, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
		"checksums": checksum(sum),
	}}
	relationships := []object{{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": top}}
	add := func(name, version, url string) object {
		id := "SPDXRef-" + notID.ReplaceAllString(name+"-"+version, "-")
		p := object{
			"SPDXID": id, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
			"externalRefs": []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}},
		}
		packages = append(packages, p)
		relationships = append(relationships, object{"spdxElementId": top, "relationshipType": "CONTAINS", "relatedSpdxElement": id})
		return p
	}
	seen := map[string]bool{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, fmt.Errorf("modules of %s: %w", filepath.Base(program), err)
		}
		if !seen["go"] {
			seen["go"] = true
			add("go", info.GoVersion, "pkg:golang/stdlib@"+info.GoVersion)
		}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			if !seen[m.Path] {
				seen[m.Path] = true
				add(m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version)
			}
		}
	}
	for _, p := range pins {
		if p.arch == arch {
			add(p.name, p.version, "pkg:deb/debian/"+p.name+"@"+p.version+"?arch="+arch)["checksums"] = checksum(p.sha256)
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	err = e.Encode(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name + "-" + version + "-" + arch,
		"documentNamespace": "https://github.com/heddle-dev/heddle/sbom/" + name + "/" + arch + "/" + sum,
		"creationInfo":      object{"created": epoch.Format("2006-01-02T15:04:05Z"), "creators": []string{"Tool: heddle-images"}},
		"packages":          packages, "relationships": relationships,
	})
	return out.Bytes(), err
}
