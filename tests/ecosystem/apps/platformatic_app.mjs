// `node platformatic_app.mjs MODULES BOOTSTRAP`: copies the topic "lines" to "copies", in transactions that commit the
// group's offsets, until it is killed. MODULES is the directory node_modules.
import { pathToFileURL } from "node:url";

const [modules, bootstrap] = process.argv.slice(2);
const { Consumer, Producer, stringDeserializers, stringSerializers } = await import(
  pathToFileURL(`${modules}/@platformatic/kafka/dist/index.js`)
);
const common = { clientId: "copier", bootstrapBrokers: bootstrap.split(","), retries: 30, retryDelay: 500 };
// By default it claims producer id 0 and epoch 0, and is fenced when it starts again: -1 asks for what there is.
const producer = new Producer({
  ...common, serializers: stringSerializers, transactionalId: "copier", idempotent: true, acks: -1,
  producerId: -1n, producerEpoch: -1,
});
const consumer = new Consumer({
  ...common, groupId: "copiers", deserializers: stringDeserializers, sessionTimeout: 6000, heartbeatInterval: 1000,
});
const stream = await consumer.consume({
  topics: ["lines"], mode: "committed", fallbackMode: "earliest", autocommit: false, maxWaitTime: 100,
});
let batch = [];
for await (const message of stream) {
  batch.push(message);
  if (stream.readableLength && batch.length < 250) continue;
  const transaction = await producer.beginTransaction();
  await transaction.addConsumer(consumer);
  await transaction.send({ messages: batch.map(({ key, value }) => ({ topic: "copies", key, value })) });
  const newest = new Map(batch.map((one) => [one.partition, one]));
  for (const one of newest.values()) await transaction.addOffset(one);
  await transaction.commit();
  batch = [];
}
