// `node kafkajs_app.js BOOTSTRAP COUNT`: copies COUNT records of the topic "lines" to "copies", in transactions that
// commit the group's offsets, until it is killed.
const { Kafka, logLevel } = require("kafkajs");

const kafka = new Kafka({ brokers: process.argv[2].split(","), logLevel: logLevel.ERROR, retry: { retries: 30 } });
const producer = kafka.producer({ transactionalId: "copier", idempotent: true, maxInFlightRequests: 1 });
const consumer = kafka.consumer({ groupId: "copiers", sessionTimeout: 6000, heartbeatInterval: 1000 });

async function copy() {
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topic: "lines", fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset }) => {
      const transaction = await producer.transaction();
      try {
        const messages = batch.messages.map(({ key, value }) => ({ key, value, partition: batch.partition }));
        await transaction.send({ topic: "copies", messages });
        const offset = (BigInt(batch.lastOffset()) + 1n).toString();
        await transaction.sendOffsets({
          consumerGroupId: "copiers",
          topics: [{ topic: batch.topic, partitions: [{ partition: batch.partition, offset }] }],
        });
        await transaction.commit();
        resolveOffset(batch.lastOffset());
      } catch (error) {
        await transaction.abort();
        throw error;
      }
    },
  });
}

copy().catch((error) => {
  console.error(error);
  process.exit(1);
});
