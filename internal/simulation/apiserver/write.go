package apiserver

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
)

// write creates, updates and patches.
func (s *Server) write(w http.ResponseWriter, r *http.Request, k *kind, at path) {
	b, err := io.ReadAll(r.Body)
	var body object
	if err == nil {
		err = json.Unmarshal(b, &body)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	if meta(body) == nil {
		body["metadata"] = object{}
	}
	if at.name == "" {
		at.name = text(meta(body)["name"])
	}
	old := k.objects[at.namespace+"/"+at.name]
	switch {
	case r.Method == http.MethodPost && old != nil:
		fail(w, http.StatusConflict, "AlreadyExists", at.name+" already exists")
	case r.Method == http.MethodPut && old == nil:
		fail(w, http.StatusNotFound, "NotFound", at.name+" not found")
	case r.Method == http.MethodPut && meta(body)["resourceVersion"] != meta(old.value())["resourceVersion"]:
		fail(w, http.StatusConflict, "Conflict", "the object has been modified")
	case r.Method == http.MethodPost, r.Method == http.MethodPut:
		meta(body)["name"], meta(body)["namespace"] = at.name, at.namespace
		answer(w, r, s.store(k, body))
	case r.Method != http.MethodPatch:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method)
	case r.Header.Get("Content-Type") == "application/apply-patch+yaml":
		s.apply(w, r, k, at, old, body)
	case old == nil:
		fail(w, http.StatusNotFound, "NotFound", at.name+" not found")
	default:
		next := old.value()
		if at.sub == "status" {
			body = object{"status": body["status"]}
		}
		if r.Header.Get("Content-Type") == "application/strategic-merge-patch+json" {
			mergeConditions(next, body)
		}
		merge(next, body)
		answer(w, r, s.store(k, next))
	}
}

// mergeConditions makes a strategic merge patch of a Node's conditions; their key
// is their type, a JSON merge patch.
func mergeConditions(old, patch object) {
	status, _ := patch["status"].(object)
	changes, _ := status["conditions"].([]any)
	before, _ := old["status"].(object)
	list, _ := before["conditions"].([]any)
	for _, change := range changes {
		change, _ := change.(object)
		at := slices.IndexFunc(list, func(c any) bool { o, _ := c.(object); return o["type"] == change["type"] })
		switch {
		case change["$patch"] == "delete":
			list = slices.DeleteFunc(list, func(c any) bool { o, _ := c.(object); return o["type"] == change["type"] })
		case at < 0:
			list = append(list, change)
		default:
			merge(list[at].(object), change) //nolint:forcetypeassert // IndexFunc found it to be one.
		}
	}
	status["conditions"] = list
}

// merge is a JSON merge patch (RFC 7386).
func merge(into, patch object) {
	for key, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(into, key)
		case object:
			inner, ok := into[key].(object)
			if !ok {
				inner = object{}
				into[key] = inner
			}
			merge(inner, v)
		default:
			into[key] = v
		}
	}
}

// apply is server-side apply for labels; annotations and spec are the last
// applier's.
func (s *Server) apply(w http.ResponseWriter, r *http.Request, k *kind, at path, old *stored, body object) {
	if uid := text(meta(body)["uid"]); uid != "" && (old == nil || uid != text(meta(old.value())["uid"])) {
		fail(w, http.StatusConflict, "Conflict", "uid mismatch")
		return
	}
	manager, force := r.URL.Query().Get("fieldManager"), r.URL.Query().Get("force") == "true"
	next := object{"metadata": object{"name": at.name, "namespace": at.namespace}}
	if old != nil {
		next = old.value()
	}
	owners := managers(next)
	have, want := labelsOf(next), labelsOf(body)
	if causes := takeOver(owners, manager, have, want, force); len(causes) > 0 {
		fail(w, http.StatusConflict, "Conflict", "Apply failed with conflicts", causes...)
		return
	}
	if k.Immutable && old != nil && !reflect.DeepEqual(old.value()["spec"], body["spec"]) {
		fail(w, http.StatusUnprocessableEntity, "Invalid", "field is immutable")
		return
	}
	release(owners, manager, have, want)
	owners[manager] = map[string]bool{}
	for key, value := range want {
		have[key], owners[manager][key] = value, true
	}
	meta(next)["labels"] = decodeLabels(have)
	meta(next)["managedFields"] = managedFields(owners)
	if notes, ok := meta(body)["annotations"]; ok {
		meta(next)["annotations"] = notes
	}
	if spec, ok := body["spec"]; ok {
		next["spec"] = spec
	}
	answer(w, r, s.store(k, next))
}

// takeOver takes labels from other managers that have other values, by force;
// else it returns who has them.
func takeOver(
	owners map[string]map[string]bool, manager string, have, want map[string]string, force bool,
) (causes []any) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		theirs, there := have[key]
		if !there || theirs == want[key] {
			continue
		}
		for other, keys := range owners {
			if other == manager || !keys[key] {
				continue
			}
			if !force {
				causes = append(causes, object{
					"reason": "FieldManagerConflict", "field": ".metadata.labels." + key,
					"message": fmt.Sprintf("conflict with %q using v1", other),
				})
			}
			delete(keys, key)
		}
	}
	return causes
}

// release removes the labels that a manager does not want any more and that no other
// manager owns.
func release(owners map[string]map[string]bool, manager string, have, want map[string]string) {
	for key := range owners[manager] {
		shared := false
		for other, keys := range owners {
			shared = shared || other != manager && keys[key]
		}
		if _, keep := want[key]; !keep && !shared {
			delete(have, key)
		}
	}
}

func decodeLabels(in map[string]string) object {
	out := object{}
	for key, value := range in {
		out[key] = value
	}
	return out
}

// managers returns the label keys that each manager owns.
func managers(o object) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	entries, _ := meta(o)["managedFields"].([]any)
	for _, e := range entries {
		entry, _ := e.(object)
		v1, _ := entry["fieldsV1"].(object)
		about, _ := v1["f:metadata"].(object)
		keys, _ := about["f:labels"].(object)
		owned := map[string]bool{}
		for key := range keys {
			owned[key[len("f:"):]] = true
		}
		out[text(entry["manager"])] = owned
	}
	return out
}

func managedFields(owners map[string]map[string]bool) []any {
	out := []any{}
	for _, manager := range slices.Sorted(maps.Keys(owners)) {
		keys := object{}
		for key := range owners[manager] {
			keys["f:"+key] = object{}
		}
		if len(keys) > 0 {
			out = append(out, object{
				"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
				"fieldsV1": object{"f:metadata": object{"f:labels": keys}},
			})
		}
	}
	return out
}
