// SPDX-License-Identifier: AGPL-3.0-or-later
// Linked with SPICE, which has this licence (LICENSES/AGPL-3.0-or-later.txt).
package edu.anu.spice;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.json.simple.JSONArray;
import org.json.simple.JSONObject;
import org.json.simple.JSONValue;

/**
 * SPICE by lines of JSON, with the steps of SpiceScorer. Unlike there, captions are parsed if asked
 * and answers are not pretty-printed, which needs the JavaScript engine that Java 15 removed.
 *
 * <p>["a dog", ...] is answered by the tuples of each caption; {"test": tuples, "refs": [tuples,
 * ...]} by the scores of the test tuples against the references. Output of libraries goes to the
 * standard error.
 */
public final class SpiceLines {
  private final SpiceParser parser;
  private final Map<String, TupleFilter> parts = new HashMap<>();

  private SpiceLines(int threads) {
    parser = new SpiceParser(null, threads, true);
    parts.put("Object", TupleFilter.objectFilter);
    parts.put("Attribute", TupleFilter.attributeFilter);
    parts.put("Relation", TupleFilter.relationFilter);
    parts.put("Cardinality", TupleFilter.cardinalityFilter);
    parts.put("Color", TupleFilter.colorFilter);
    parts.put("Size", TupleFilter.sizeFilter);
  }

  public static void main(String[] arguments) throws Exception {
    PrintStream out = new PrintStream(System.out, true, "UTF-8");
    System.setOut(System.err);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    SpiceLines spice = new SpiceLines(Integer.parseInt(arguments[0]));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(spice.answer(JSONValue.parseWithException(line)));
    }
  }

  private String answer(Object question) {
    if (question instanceof JSONArray) {
      return JSONValue.toJSONString(parse((JSONArray) question));
    }
    return score((JSONObject) question);
  }

  @SuppressWarnings("unchecked")
  private List<Object> parse(List<Object> captions) {
    List<String> unique = new ArrayList<>();
    for (Object caption : captions) {
      unique.add((String) caption);
    }
    Map<String, ArrayList<ArrayList<String>>> found = parser.generateTuples(unique);
    List<Object> tuples = new ArrayList<>();
    for (String caption : unique) {
      tuples.add(found.get(caption));
    }
    return tuples;
  }

  private String score(JSONObject question) {
    SpiceStats stats = new SpiceStats(parts, false);
    SceneGraph test = graph();
    add(test, question.get("test"));
    SceneGraph references = graph();
    for (Object tuples : (JSONArray) question.get("refs")) {
      add(references, tuples);
    }
    stats.score("", test, references, true);
    return ((JSONObject) stats.toJSONArray().get(0)).get("scores").toString();
  }

  private SceneGraph graph() {
    return new SceneGraph(parser.synonyms, parser.mergeSimilarNodes);
  }

  private static void add(SceneGraph scene, Object tuples) {
    for (Object tuple : (JSONArray) tuples) {
      ArrayList<String> words = new ArrayList<>();
      for (Object word : (JSONArray) tuple) {
        words.add((String) word);
      }
      scene.addTuple(words);
    }
  }
}
